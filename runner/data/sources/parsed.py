"""Tables of text, parsed once: their arrays on disk, mapped into memory by every process that reads them.

    <folder>/<key>/meta.json, 0.npy, 1.npy, ...

The key is a digest of the files' content, of what is taken of it and of what parses it. The folder is the user's own:
one that another user owns or can write to is not used. What was not used for longest is removed where all of it
together takes more than `MOST_BYTES`. A folder that can't be written is done without.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.base import ArraySource, ArraySpec
from runner.data.sources.place import META, made_once, remove
from runner.data.tell import tell
from runner.errors import DataError
from runner.host.folders import is_ours

FORMAT = 1
SMALLEST = 1 << 20  # bytes of text below which parsing costs less than looking here
MOST_BYTES = 16 << 30  # of all tables together
_KINDS = ("npy",)


@dataclass(frozen=True)
class Parsed:
    """Tables as arrays.

    Attributes:
      splits: name -> its arrays.
      categories: array of whole numbers -> the words that they count.
    """

    splits: Mapping[str, ArraySource]
    categories: Mapping[str, tuple[str, ...]]


def folder() -> Path:
    """Returns where parsed tables are kept: a folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "runner" / "tables"


def stats(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    """Returns what changes with a file's content: its number, its size and its time of change.

    Raises:
      OSError: one can't be looked at.
    """
    found = [file.stat() for file in files]
    return [(one.st_ino, one.st_size, one.st_ctime_ns) for one in found]


def parsed(place: Path, key: object, make: Callable[[], Parsed], is_current: Callable[[], bool]) -> Parsed:
    """Returns tables that were parsed before, mapped from disk, or parses and keeps them.

    Args:
      place: see `folder`.
      key: plain values that the tables are a function of.
      make: parses them.
      is_current: whether the files are still those that the key was made of; what is not is not kept.

    Raises:
      DataError: the tables can't be parsed, or the folder holds what no run wrote.
    """
    name = hashlib.sha256(json.dumps([FORMAT, pa.__version__, key], sort_keys=True).encode()).hexdigest()[:32]
    made: list[Parsed] = []

    def write(partial: Path) -> None:
        made.append(make())
        if not is_current():
            raise OSError("the files changed while they were read")
        _write(partial, made[0])

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        if not is_ours(place):
            return make()
        found = made_once(place / name, _KINDS, _read, write, tell, "the parsed table")
        with suppress(OSError):
            os.utime(place / name / META)
    except OSError:  # the next start parses again
        return made[0] if made else make()
    if made:
        made.clear()
        pa.default_memory_pool().release_unused()
        _bound(place, name)
    return found


def _write(partial: Path, tables: Parsed) -> None:
    splits: dict[str, dict[str, object]] = {}
    count = total = 0
    for split, source in tables.splits.items():
        splits[split] = {}
        for name, array in source.arrays.items():
            total += array.nbytes
            if total > MOST_BYTES:
                raise OSError("it takes more than all tables together may")
            with (partial / f"{count}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            splits[split][name] = {"file": f"{count}.npy", "spec": asdict(source.specs[name])}
            count += 1
    content = {"format": FORMAT, "splits": splits, "categories": tables.categories}
    (partial / META).write_text(json.dumps(content), "utf-8")


def _read(there: Path) -> Parsed | None:
    """Maps what is there; None where there is nothing, or no such thing."""
    try:
        content = json.loads((there / META).read_text("utf-8"))
        if content["format"] != FORMAT:
            return None
        splits = {split: _source(there, columns) for split, columns in content["splits"].items()}
        categories = {name: tuple(words) for name, words in content["categories"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Parsed(splits, categories)


def _source(there: Path, columns: Mapping[str, Mapping[str, object]]) -> ArraySource:
    arrays = {}
    specs = {}
    for name, column in columns.items():
        fields = dict(column["spec"])  # type: ignore[call-overload] # what it is not is not read
        spec = ArraySpec(tuple(fields["shape"]), fields["dtype"], tuple(fields["dims"]), tuple(fields["names"]))
        array = np.load(there / Path(str(column["file"])).name, mmap_mode="r", allow_pickle=False)
        if (array.shape[1:], str(array.dtype)) != (spec.shape, spec.dtype):
            raise ValueError(f"{there} holds another table")
        arrays[name], specs[name] = array, spec
    return ArraySource(arrays, specs)


def _bound(place: Path, newest: str) -> None:
    """Removes the tables that were not used for longest, where all of them take too much."""
    held = []
    with suppress(OSError):
        for meta in place.glob(f"*/{META}"):
            size = sum(file.stat().st_size for file in meta.parent.glob("*.npy"))
            held.append((meta.parent.name == newest, meta.stat().st_mtime, size, meta.parent))
    total = sum(size for _, _, size, _ in held)
    for is_newest, _, size, there in sorted(held):
        if total <= MOST_BYTES or is_newest:
            return
        with suppress(OSError, DataError):  # a file that is mapped can't be removed on Windows
            remove(there, _KINDS)
            total -= size
