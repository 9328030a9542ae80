"""What identifies files of text: the sha256 of each, remembered by its size and time of change.

So a second run on a large corpus reads none of it. A file that changed within the clock's tick of the look at it is
not remembered: it may change again unseen.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from runner.data.sources.text.files import Source, Text
from runner.errors import DataError
from runner.host import cores

_TICK_NS = 3_000_000_000  # file systems keep times in up to 2 s
_FORMAT = 1  # of what is remembered

Stat = tuple[int, int]  # bytes, and time of change (ctime, which nothing sets back) in ns


def digest(splits: Mapping[str, Sequence[Source]], column: str, memory: Path) -> str:
    """Returns sha256 (hex) of what documents are read from, by split and in order; names of files don't matter.

    Args:
      splits: files of each split.
      column: of those that have columns.
      memory: folder in which digests are remembered; one that can't be written is done without.

    Raises:
      DataError: a file can't be read.
    """
    files = [one for group in splits.values() for one in group if isinstance(one, Path)]
    found = _digests(files, memory)
    total = hashlib.sha256()
    for split, group in sorted(splits.items()):
        for one in group:
            if isinstance(one, Text):
                kind = ".txt"
                sha256 = hashlib.sha256(one.content.encode()).hexdigest()
            else:
                kind = one.suffix.lower()
                sha256 = found[str(one.absolute())]
            own = f" {column}" if kind in (".jsonl", ".parquet") else ""
            total.update(f"{split}{own} {sha256}\n".encode())
    return total.hexdigest()


def stats(splits: Mapping[str, Sequence[Source]]) -> list[Stat]:
    """Returns what tells whether a file changed meanwhile."""
    return [_stat(one) for group in splits.values() for one in group if isinstance(one, Path)]


def _stat(path: Path) -> Stat:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error
    return found.st_size, found.st_ctime_ns


def _digests(files: Sequence[Path], memory: Path) -> dict[str, str]:
    names = [str(one.absolute()) for one in files]
    place = memory / f"{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]}.json"
    known = _remembered(place)

    def one(name: str) -> tuple[Stat, str]:
        now = _stat(Path(name))
        old = known.get(name)
        if old is not None and old[0] == now:
            return old
        try:
            with Path(name).open("rb") as opened:
                return now, hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{name} can't be read: {error.strerror}") from error

    with ThreadPoolExecutor(cores.available()) as pool:
        found = dict(zip(names, pool.map(one, names), strict=True))
    if found != known:
        _remember(place, found)
    return {name: sha256 for name, (_, sha256) in found.items()}


def _remembered(place: Path) -> dict[str, tuple[Stat, str]]:
    try:
        content = json.loads(place.read_text())
        if content["format"] != _FORMAT:
            return {}
        return {name: ((int(size), int(changed)), str(sha)) for name, (size, changed, sha) in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or another program's
        return {}


def _remember(place: Path, found: Mapping[str, tuple[Stat, str]]) -> None:
    latest = time.time_ns() - _TICK_NS
    kept = {name: [*stat, sha256] for name, (stat, sha256) in found.items() if stat[1] < latest}
    partial = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"format": _FORMAT, "files": kept}))
        partial.replace(place)
    except OSError:  # the next run looks again
        with suppress(OSError):
            partial.unlink()
