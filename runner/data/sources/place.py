"""Folders that prepared data comes to: made once, whole, under a lock, however many processes need it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from runner.errors import DataError
from runner.host.folders import remove_empty, remove_files
from runner.host.lock import locked

META = "meta.json"  # written last: a folder that has it is complete
Value = TypeVar("Value")


def made_once(
    place: Path,
    kinds: tuple[str, ...],
    read: Callable[[Path], Value | None],
    write: Callable[[Path], None],
    say: Callable[[str], object],
    what: str,
) -> Value:
    """Returns what a folder holds, which is written where that was not done yet.

    Args:
      place: the folder.
      kinds: suffixes of the files that `write` makes beside `META`.
      read: returns what a folder holds; None where there is nothing, or no such thing.
      write: fills a new folder, which then comes to its place in one step.
      say: told what this process waits for.
      what: what the folder holds, in words.

    Raises:
      DataError: something else is in the way, or what was written can't be read.
      OSError: the folder can't be written.
    """
    if (found := read(place)) is not None:  # it comes to its place whole
        return found
    with locked(place.with_name(f"{place.name}.lock"), say, what):
        found = read(place)
        if found is None:
            partial = place.with_name(f".partial-{place.name}")  # under the lock, so one there is a killed run's
            remove(partial, kinds)
            remove(place, kinds)  # of another format, or broken
            partial.mkdir(parents=True)
            try:
                write(partial)
            except Exception:  # a full disk gets its room back
                remove(partial, kinds)
                raise
            partial.replace(place)
            found = read(place)
    if found is None:
        raise DataError(f"{place} was written and yet can't be read; remove that folder")
    return found


def remove(folder: Path, kinds: tuple[str, ...]) -> None:
    """Removes a folder's files of some kinds, and the folder if that leaves it empty.

    Raises:
      DataError: it holds something else.
    """
    remove_files(folder, [META, *(one.name for kind in kinds for one in folder.glob(f"*.{kind}"))])
    remove_empty([folder])
    if folder.exists():
        raise DataError(f"{folder} is in the way, and holds what no run wrote; move that elsewhere")
