"""What a campaign is: cases, each of which held or did not."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO


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
