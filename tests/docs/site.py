"""The documentation site: docs/, CHANGELOG.md and CONTRIBUTING.md as HTML that opens from a folder.

`python -m tests.docs.site` writes build/site and checks it. Sphinx is in the extra `docs`. No network is needed, to
build the site or to read it. `python -m tests.docs.site links` asks the other hosts for every page that is linked to.

The pages stay plain Markdown in one folder, which hosting sites show too. What only Sphinx needs is added to a copy:
each list item that begins with a link gives that page its place in the navigation, comments such as
`<!-- autofunction: name -->` become directives, the words after a fence become a caption, and the generated reference
becomes one page per config group, whose keys are entries of a definition list. `docs/site_pages.py` orders
the results of a search.
"""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs import pages
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
FOLDER = ROOT / "build" / "site"
# Pages of the header, in order. Each lists the pages of its section.
SECTIONS = ("get_started", "how_to", "concepts", "reference_pages")
# Pages of the top folder, which have their place in the site too.
TOP = ("CHANGELOG", "CONTRIBUTING")
_ENTRY = re.compile(r"^- \[[^\]]+\]\((?:\.\./)?([\w-]+)\.md\)", flags=re.M)
_GROUPS = "## Groups and keys\n"
_HEADING = re.compile(r"^### (.+)$", flags=re.M)
_TO_REFERENCE = re.compile(r"\]\(reference\.md#([\w-]+)\)")
_DIRECTIVE = re.compile(r"^<!-- (auto\w+): ([\w.]+) -->$", flags=re.M)
_CAPTION = re.compile(r'^```(sh|python|yaml|text) (?:title="([^"\n]+)"|([^\n]+))$', flags=re.M)
_KEY = re.compile(r"^- `([^`]+)`: (?:(.*); )?default (.*?)(?:\\\n  (.*))?$", flags=re.M)
# What a browser fetches from another host by itself, as opposed to a link that a reader follows. Of the relations of a
# `link` element only these fetch: stylesheet, icon, preload, prefetch, modulepreload, preconnect and dns-prefetch.
_FETCHES = {
    "*.html": re.compile(
        r"""<(?:audio|embed|iframe|img|script|source)\b[^>]*\ssrc=["']?(?:https?:)?//"""
        r"""|<link\b(?=[^>]*\srel=["']?[^"'>]*(?:stylesheet|icon|pre|dns))[^>]*\shref=["']?(?:https?:)?//""",
        flags=re.I,
    ),
    "*.css": re.compile(r"""(?:url\(\s*['"]?|@import\s+['"])(?:https?:)?//""", flags=re.I),
}


def entries(page: str) -> list[str]:
    """Returns the pages whose place in the navigation is below this page, in order."""
    return _ENTRY.findall(pages.path_of(page).read_text())


@functools.cache
def reference_split() -> dict[str, str]:
    """Returns page -> text of the reference: `reference` without its groups, and one page per config group."""
    begin, _, rest = pages.path_of("reference").read_text().partition(_GROUPS)
    groups, _, end = rest.partition("\n## ")
    _, *parts = _HEADING.split(groups)
    split, listed = {}, []
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        name = "reference_" + re.sub(r"[^a-z]", "", heading.partition(":")[0].lower())
        split[name] = f"# Config group {heading}\n{_KEY.sub(_entry, body).replace('#### ', '## ')}"
        listed.append(f"- [{heading}]({name}.md)")
    toctree = ["", "```{toctree}", ":hidden:", "", *split, "```", ""]
    lines = [_GROUPS, "One page per group:", "", *listed, "", f"## {end}", *toctree]
    return {"reference": begin + "\n".join(lines), **split}


def _entry(key: re.Match[str]) -> str:
    name, kind, default, meaning = key.groups(default="")
    options = [f":type: {kind}"] * bool(kind) + [f":default: {default}"]
    return "\n".join([f"```{{confval}} {name}", *options, "", meaning, "```"])


@functools.cache
def _reference_anchors() -> dict[str, str]:
    """Returns anchor in docs/reference.md -> page, and anchor on it, of the split reference."""
    targets = {}
    for page, text in reference_split().items():
        first, *others = re.findall(r"^#+ (.+)$", text, flags=re.M)
        targets[pages.anchor(first.removeprefix("Config group "))] = f"{page}.md"
        for heading in others:
            targets[pages.anchor(heading)] = f"{page}.md#{pages.anchor(heading)}"
    return targets


def staged(page: str) -> str:
    """Returns a page's text with what only Sphinx reads."""
    text = pages.path_of(page).read_text()
    text = _TO_REFERENCE.sub(lambda link: f"]({_reference_anchors()[link[1]]})", text)
    text = _DIRECTIVE.sub(_directive, text)
    text = _CAPTION.sub(_captioned, text)
    if page in TOP:
        text = text.replace("](docs/", "](").replace("](LICENSE)", "](LICENSE.txt)")
    for top in TOP:
        text = text.replace(f"](../{top}.md", f"]({top}.md")
    below = list(SECTIONS) if page == "index" else []
    if page in SECTIONS:
        below = entries(page)
    if below:
        lines = ["", "```{toctree}", ":hidden:", "", *below, "```", ""]
        text += "\n".join(lines)
    return text


def _directive(comment: re.Match[str]) -> str:
    name, target = comment.groups()
    options = "   :members:\n" if name == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {name}:: {target}\n{options}```"


def _captioned(fence: re.Match[str]) -> str:
    language, title, name = fence.groups()
    caption = title or name
    return f'```{{code-block}} {language}\n:caption: "{caption}"\n'


def stage(folder: Path) -> None:
    """Writes the source of the site into an empty folder."""
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.md", "__pycache__"), dirs_exist_ok=True)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE.txt")
    for page in [path.stem for path in DOCS.glob("*.md")] + list(TOP):
        (folder / f"{page}.md").write_text(staged(page))
    for page, text in reference_split().items():
        (folder / f"{page}.md").write_text(text)


def sphinx(builder: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs one of Sphinx's builders on the staged pages, with warnings as errors, into a folder of its name."""
    source = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    stage(source)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder]
    folders = [f"--doctree-dir={folder / 'doctrees'}", str(source), str(folder / builder)]
    return subprocess.run([*command, *folders], cwd=ROOT, capture_output=True, text=True, check=False)


def fetching(html: Path) -> list[str]:
    """Returns the files of a site that would fetch something from another host."""
    found = []
    for files, pattern in _FETCHES.items():
        found += [path.relative_to(html).as_posix() for path in html.rglob(files) if pattern.search(path.read_text())]
    return found


def main(arguments: list[str]) -> int:
    """Builds and checks the site, or asks for its links; returns the exit code."""
    builder = "linkcheck" if arguments == ["links"] else "html"
    done = sphinx(builder, FOLDER)
    print(done.stdout + done.stderr, file=sys.stderr)
    found = fetching(FOLDER / builder)
    if found:
        print("fetches from another host:", *found, file=sys.stderr)
    print(FOLDER / builder)
    return done.returncode or bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
