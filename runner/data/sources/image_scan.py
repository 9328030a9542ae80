"""The first look at image files: their content's hash, their size, and whether they can be decoded.

Remembered by size and time of change (ctime, which nothing sets back) in ~/.cache/runner/images, so that a second run
reads the changed files alone. A file that changed within the clock's tick of the scan is not remembered: it may change
again unseen.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.data import images
from runner.host import cores

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_TICK_NS = 3_000_000_000  # file systems keep times in up to 2 s
_FORMAT = 1  # of what is remembered
_PART = 64  # files that a thread looks at in one task


@dataclass(frozen=True)
class Scanned:
    """What is known of a file.

    Attributes:
      bytes: its size.
      changed: its time of change, in ns.
      sha256: of its content, as hex.
      height: of the image, as it is shown; 0 where it can't be read.
      width: likewise.
      gray: whether it has no colors.
      decoded: whether decoding it was tried.
      broken: why it can't be read; empty where it can, as far as it was tried.
    """

    bytes: int
    changed: int
    sha256: str
    height: int
    width: int
    gray: bool
    decoded: bool
    broken: str


def scan(root: Path, files: Sequence[str], *, decode: bool) -> dict[str, Scanned]:
    """Looks at files, several at a time.

    Args:
      root: the folder.
      files: paths below it.
      decode: decodes each once, to find those that are broken; else only their headers are read.

    Returns:
      What is known of each, in the order of `files`.
    """
    memory = _memory(root)
    known = _remembered(memory)

    below = str(root)

    def some(part: Sequence[str]) -> list[Scanned]:
        return [_seen(os.path.join(below, file), known.get(file), decode=decode) for file in part]  # noqa: PTH118 - 15 us less a file

    # A task for each file would cost more than the look at one that is remembered.
    parts = [files[start : start + _PART] for start in range(0, len(files), _PART)]
    with ThreadPoolExecutor(cores.available()) as pool:
        looked_at = [scanned for part in pool.map(some, parts) for scanned in part]
    found = dict(zip(files, looked_at, strict=True))
    if found != known:
        _remember(memory, found)
    return found


def _seen(path: str, old: Scanned | None, *, decode: bool) -> Scanned:
    """Returns what is known of a file, for which it is read only if it changed."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - for each file, and a Path takes longer than the call
        same = old is not None and (old.bytes, old.changed) == (stat.st_size, stat.st_ctime_ns)
        if old is not None and same and (old.decoded or not decode):
            return old
        return _look(Path(path).read_bytes(), stat.st_ctime_ns, decode=decode)
    except OSError as error:
        return Scanned(0, 0, "", 0, 0, False, False, error.strerror or str(error))


def _look(data: bytes, changed: int, *, decode: bool) -> Scanned:
    digest = hashlib.sha256(data).hexdigest()
    broken = ""
    header = images.Header(0, 0, True)
    try:
        header = images.read_header(data)
        if decode:
            images.decode(data, 3)
    except ValueError as error:
        broken = str(error)
    return Scanned(len(data), changed, digest, header.height, header.width, header.gray, decode, broken)


def _memory(root: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "runner" / "images" / f"{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]}.json"


def _remembered(path: Path) -> dict[str, Scanned]:
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            return {}
        return {file: Scanned(**fields) for file, fields in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or another program's
        return {}


def _remember(path: Path, found: Mapping[str, Scanned]) -> None:
    latest = time.time_ns() - _TICK_NS
    kept = {file: asdict(one) for file, one in found.items() if one.sha256 and one.changed < latest}
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"format": _FORMAT, "files": kept}))
        partial.replace(path)
    except OSError:  # the next run looks again
        with suppress(OSError):
            partial.unlink()
