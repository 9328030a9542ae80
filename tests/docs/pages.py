"""Blocks and command lines of README.md and the pages of docs/, and what each command needs.

The words after a fence give the kind of a block. `sh` are commands that the test runs in order. `sh title="Needs: a
Slurm cluster"` are commands that need something that a test does not have. `python name.py` is a file that the reader
writes. A block without words is output, and so is `text title="Needs: a GPU"`. `text` is a list or a formula.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from runner.cli.commands import commands as known_commands

ROOT = Path(__file__).resolve().parents[2]
README = "README"
# Pages with errors about what their commands write, such as a project.
WRITING = ("project",)
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.M | re.S)
_NEEDS = re.compile(r'sh (?:title="Needs: |needs )([^"]+)"?')
_VARIABLE = re.compile(r"[A-Z_]+=.*", flags=re.S)
# Programs that start another one in several processes. Only torchrun may leave out the `python` of `python -m`.
_LAUNCHERS = ("srun", "mpirun", "torchrun")


@dataclass(frozen=True)
class Command:
    """One command line of a page.

    Attributes:
      words: as a shell splits it, comments and the variables before the program left out.
      needs: what it needs that a test does not have; empty: nothing.
    """

    words: tuple[str, ...]
    needs: str = ""

    @property
    def module(self) -> str:
        """`runner.plan` of `python -m runner.plan`; empty: it starts no module."""
        return self.words[2] if self.words[:2] == ("python", "-m") else ""

    @property
    def arguments(self) -> list[str]:
        """Arguments after the module."""
        return list(self.words[3:])

    @property
    def launched(self) -> Command | None:
        """The command that a launcher such as srun starts in its processes; None: this is not a launcher's."""
        if self.words[0] not in _LAUNCHERS:
            return None
        first = "python" if "python" in self.words else "-m"
        assert first in self.words, f"{self}: starts no program of Python"
        rest = self.words[self.words.index(first) :]
        return replace(self, words=rest if first == "python" else ("python", *rest))

    @property
    def supervised(self) -> Command | None:
        """The command that `runner.supervise` starts; None: this is not the supervisor's."""
        if self.module != "runner.supervise" or "--" not in self.words:
            return None
        return replace(self, words=self.words[self.words.index("--") + 1 :])

    def __str__(self) -> str:
        return shlex.join(self.words)


def names() -> list[str]:
    """Returns the names of all pages: README, CONTRIBUTING and those of docs/."""
    return [README, "CONTRIBUTING", *sorted(path.stem for path in (ROOT / "docs").glob("*.md"))]


def path_of(page: str) -> Path:
    top = ROOT / f"{page}.md"
    return top if top.exists() else ROOT / "docs" / f"{page}.md"


def section(page: str, heading: str) -> str:
    """Returns the text of a page, or of the section with that heading, such as `## Data`."""
    text = path_of(page).read_text()
    if not heading:
        return text
    begin = text.index(f"\n{heading}\n")
    level = heading.partition(" ")[0]
    end = re.search(rf"^#{{1,{len(level)}}} ", text[begin + len(heading) :], flags=re.M)
    return text[begin : begin + len(heading) + end.start()] if end else text[begin:]


def blocks(page: str, heading: str = "") -> list[tuple[str, str]]:
    """Returns (words after the fence, text) of each block of a page, or of one of its sections."""
    return _BLOCK.findall(section(page, heading))


def files(page: str, heading: str = "") -> dict[str, str]:
    """Returns name -> text of the Python and YAML files that a page's reader writes."""
    named = [(kind.partition(" "), text) for kind, text in blocks(page, heading)]
    return {name: text for (kind, _, name), text in named if name and kind in ("python", "yaml")}


def write_files(page: str, folder: Path) -> None:
    """Writes a page's files into a folder."""
    for name, text in files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commands(page: str) -> list[Command]:
    """Returns the command lines of a page, in order."""
    lines: list[Command] = []
    for kind, text in blocks(page):
        if kind.split(" ")[0] == "sh":
            lines += _commands_of(page, kind, text)
    return lines


def _commands_of(page: str, kind: str, text: str) -> list[Command]:
    needed = _NEEDS.fullmatch(kind)
    assert needed or kind == "sh", f'{page}: ```{kind} must be ```sh or ```sh title="Needs: ..."'
    needs = needed[1] if needed else ""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            lines.append(command_of(words, needs))
    return lines


def command_of(words: list[str], needs: str = "") -> Command:
    """Returns the command of a line, without the leading NAME=value that set variables of its environment."""
    while words and _VARIABLE.fullmatch(words[0]):
        words = words[1:]
    assert words, "the line starts no program"
    if words[0] == "runner":  # the installed command is the same code
        name = words[1] if len(words) > 1 and words[1] in known_commands() else ""
        words = ["python", "-m", f"runner.{name}".rstrip("."), *words[1 + bool(name) :]]
    return Command(tuple(words), needs)


def shown_errors(page: str) -> list[tuple[str, str]]:
    """Returns (arguments, error line) of the blocks that show both; `...` in the line means any text.

    Errors about what the page's commands write are left out: the test of these commands compares them.
    """
    if page in WRITING:
        return []
    both = re.compile(r"^\$ (?:python -m )?runner (.*)\n(error: .*)$", flags=re.M)
    return [pair for kind, text in blocks(page) if not kind for pair in both.findall(text)]


def matches(line: str, shown: str) -> bool:
    """Returns whether a line is the one that a page shows, where `...` means any text."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), line.strip()) is not None


def links(page: str) -> list[str]:
    """Returns what a page links to, pictures included."""
    text = _BLOCK.sub("", path_of(page).read_text())
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchor(heading: str) -> str:
    """Returns the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """Returns the anchors that GitHub generates for a page's headings."""
    return set(map(anchor, re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)))
