"""Links of the pages to other hosts.

What can be checked without a network is checked here: the form of an address, and its host. `python -m tests.docs.site
links` asks the hosts.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.pages import ROOT

# Hosts that pages may link to. Another one is a decision: it should be the project's own site of what is named.
HOSTS = {
    "arxiv.org",
    "docs.astral.sh",
    "github.com",
    "huggingface.co",
    "keepachangelog.com",
    "keras.io",
    "lightning.ai",
    "semver.org",
    "www.tensorflow.org",
}
_FENCE = re.compile(r"^```.*?^```$", flags=re.M | re.S)
_CODE = re.compile(r"`[^`\n]*(?:\n[^`\n]*)?`")
# `[text](address)`, where a line of text may end inside the brackets, and `<https://...>`.
_LINK = re.compile(r"\[([^\]]*)\]\((\w+://[^)\s]+)\)|<(\w+://[^>\s]+)>")
_PATH = re.compile(r"(/[\w.~%+-]+)*/?")
# A repository, or an issue or pull request of one.
_GITHUB = re.compile(r"/[\w-]+/([\w.-]+)(?:/(?:issues|pull)/([1-9]\d*))?")
# Link texts such as `jax 12868` name the repository and the number.
_NUMBERED = re.compile(r"([a-z][\w-]*) (?:issue )?(\d+)")


def texts() -> list[Path]:
    """Returns the Markdown files of the top folder and of docs/."""
    return sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))


def external(text: str) -> list[tuple[str, str]]:
    """Returns (link text, address) of each link of a Markdown text to another host; code has no links."""
    text = _CODE.sub("code", _FENCE.sub("", text))
    found = []
    for name, address, bare in _LINK.findall(text):
        found.append((" ".join(name.split()), address or bare))
    return found


def problem(address: str, name: str = "") -> str:
    """Returns what is wrong with an address of another host; empty: nothing.

    Args:
      address: with its scheme.
      name: the link text, which must agree with the address if it names an issue.
    """
    parts = urlsplit(address)
    if parts.scheme != "https":
        return "must begin with https://"
    if parts.netloc not in HOSTS:
        return f"host {parts.netloc} is not in HOSTS of tests/docs/links.py"
    if not _PATH.fullmatch(parts.path) or parts.query:
        return "must be a plain path, without a query or other signs"
    if parts.netloc != "github.com":
        return ""
    found = _GITHUB.fullmatch(parts.path)
    if not found:
        return "must be github.com/owner/name, or its /issues/<number> or /pull/<number>"
    repository, number = found.groups()
    numbered = _NUMBERED.fullmatch(name)
    if numbered and numbered.groups() != (repository, number):
        return f"the link text is '{name}'"
    return ""
