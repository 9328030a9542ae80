"""README.md and the pages of docs/: their blocks, the command lines in them, and what each needs to be run.

Behind a fence stands what a block is: `sh` are commands that the test runs in order; `sh needs a Slurm cluster` are
commands that need what a test has not; `sh exits with 1` may fail so; `python name.py` is a file that the page's
reader writes. What has no word is output.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = "README"
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.M | re.S)
_NEEDS, _EXITS = "sh needs ", "sh exits with "


@dataclass(frozen=True)
class Command:
    """One command line of a page.

    Attributes:
      words: as a shell splits it, comments left out.
      needs: what it needs that a test has not; empty: it is run.
      code: the exit code that it should have.
    """

    words: tuple[str, ...]
    needs: str = ""
    code: int = 0

    @property
    def module(self) -> str:
        """`runner.plan` of `python -m runner.plan`; empty: it starts no module."""
        return self.words[2] if self.words[:2] == ("python", "-m") else ""

    @property
    def arguments(self) -> list[str]:
        """What stands behind the module."""
        return list(self.words[3:])

    def __str__(self) -> str:
        return shlex.join(self.words)


def names() -> list[str]:
    """Every page: README, CONTRIBUTING and those of docs/."""
    return [README, "CONTRIBUTING", *sorted(path.stem for path in (ROOT / "docs").glob("*.md"))]


def path_of(page: str) -> Path:
    top = ROOT / f"{page}.md"
    return top if top.exists() else ROOT / "docs" / f"{page}.md"


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns (what stands behind the fence, the text) of each block of a page."""
    return _BLOCK.findall(path_of(page).read_text())


def files(page: str) -> dict[str, str]:
    """Returns name -> text of the Python files that a page's reader writes."""
    return {kind.removeprefix("python "): text for kind, text in blocks(page) if kind.startswith("python ")}


def commands(page: str) -> list[Command]:
    """Returns the command lines of a page, in order."""
    found = []
    for kind, text in blocks(page):
        if kind.split(" ")[0] != "sh":
            continue
        needs = kind.removeprefix(_NEEDS) if kind.startswith(_NEEDS) else ""
        code = int(kind.removeprefix(_EXITS)) if kind.startswith(_EXITS) else 0
        assert needs or code or kind == "sh", f"{page}: what is a block of ```{kind}?"
        for line in text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                found.append(Command(tuple(words), needs, code))
    return found


def refused(page: str) -> list[tuple[str, str]]:
    """Returns (command line, the line that it is refused with) of the blocks that show both; `...` stands for more."""
    both = re.compile(r"^\$ python -m runner (.*)\n(error: .*)$", flags=re.M)
    return [pair for kind, text in blocks(page) if not kind for pair in both.findall(text)]


def says(line: str, shown: str) -> bool:
    """Tells whether a line is the one that a page shows, `...` standing for anything."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), line.strip()) is not None


def links(page: str) -> list[str]:
    """Returns what a page links to, pictures included."""
    text = _BLOCK.sub("", path_of(page).read_text())
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(path: Path) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
