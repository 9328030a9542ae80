"""What a campaign is: cases, each of which held or did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

NAMES = (
    "kills",
    "fuzz",
    "mutations",
)


@dataclass(frozen=True)
class Case:
    """One case of a campaign, after it was tried.

    Attributes:
      name: what was done, so that a person can do it again.
      held: whether the runner did what it must.
      note: what it did, in a line.
    """

    name: str
    held: bool
    note: str = ""


class Campaign(Protocol):
    """What a module of this package has.

    Attributes:
      CASES: how many cases are tried where the command line gives no number.
    """

    CASES: int

    def run(self, cases: int, seed: int, folder: Path) -> Iterator[Case]:
        """Tries cases, and yields each when it is done.

        Args:
          cases: how many.
          seed: decides what they are; the same seed gives the same cases.
          folder: an empty one to work in.
        """


def tell(name: str, cases: Iterable[Case], out: TextIO) -> int:
    """Prints a line a case and the summary; returns how many did not hold."""
    tried, broken = 0, []
    for case in cases:
        tried += 1
        broken += [] if case.held else [case]
        print(f"{name} {tried}: {'held' if case.held else 'BROKEN'}  {case.name}  {case.note}".rstrip(), file=out)
        out.flush()
    for case in broken:
        print(f"{name} BROKEN: {case.name}  {case.note}", file=out)
    print(f"{name}: {tried - len(broken)} of {tried} held", file=out)
    return len(broken)
