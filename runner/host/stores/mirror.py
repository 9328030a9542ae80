"""Local mirrors of what libraries read as files: data, presets and tokenizers in an object store.

A mirror is named by the URL and by the names, sizes and tags of its objects. So it is made once per machine, a changed
object makes another one, and a run reads the same files to its end. The mirrors are beside the copies of
`runner.host.stores.cache`, with the same bound: the least recently used that no process reads are removed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache as cached
from pathlib import Path

from runner.host import stages
from runner.host.lock import HeldError, is_free, locked, locked_at_once, share_until_exit
from runner.host.paths import random_part
from runner.host.stores import cache, client
from runner.host.stores.client import StoreError, Tag
from runner.host.stores.urls import ObjectPath

# Objects that are transferred at once.
_TRANSFERS = 8

# Times that a mirror is begun because an object was changed meanwhile.
_TRIES = 4

_UNFINISHED = ".unfinished-"
# Suffixes of the files by which a mirror is locked while it is made or removed, and marked as used.
_LOCK = ".lock"
_USED = ".used"

# Hexadecimal digits of a mirror's name.
_DIGITS = 32

Versions = Mapping[str, tuple[int, Tag]]


class MissingError(FileNotFoundError):
    """A URL below which the store has no object."""


def folder() -> Path:
    """Returns the folder of all mirrors."""
    return cache.folder().with_name("mirrors")


@cached
def local(url: str) -> Path:
    """Returns the mirror of an object or of a folder; of one URL always the same in a process.

    Args:
      url: in which `urls.problem` finds none.

    Returns:
      A local file or folder with the name that the URL ends with.

    Raises:
      MissingError: the store has nothing there.
      StoreError: the store does not answer, or an object's path has parts that are not names.
      OSError: the disk is full or can't be written.
    """
    path = ObjectPath.of(url)
    for tries_left in reversed(range(_TRIES)):
        versions = client.versions(path)
        if not versions:
            raise MissingError(errno.ENOENT, "does not exist", str(path))
        try:
            return _mirror(path, versions)
        except (FileNotFoundError, _ChangedError):
            # Removed or changed meanwhile.
            if not tries_left:
                raise
    raise AssertionError("unreachable")


class _ChangedError(StoreError):
    """Objects that do not stay the same while they are transferred."""


def _mirror(path: ObjectPath, versions: Versions) -> Path:
    """Returns the mirror of these versions of objects, which is made if there is none."""
    own = folder() / _name_of(path, versions)
    content = own / (path.name or "bucket")
    own.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned()
    with locked(own.with_suffix(_LOCK)):
        if not content.exists():
            size = sum(bytes_of_object for bytes_of_object, _ in versions.values())
            _make_room(size)
            with stages.stage(f"copying {path}, {size / 1e6:,.1f} MB"):
                _make(path, versions, own, content.name)
        # While this process lives, no other one removes the mirror.
        share_until_exit(own.with_suffix(_USED))
    os.utime(own)
    return content


def _name_of(path: ObjectPath, versions: Versions) -> str:
    listed = [[name, size, tag.e_tag, tag.version] for name, (size, tag) in sorted(versions.items())]
    return hashlib.sha256(json.dumps([str(path), listed]).encode()).hexdigest()[:_DIGITS]


def _make(path: ObjectPath, versions: Versions, own: Path, name: str) -> None:
    """Transfers all objects into a folder that gets its name when it is whole."""
    temporary = own.with_name(f"{_UNFINISHED}{random_part()}")
    try:
        targets = {}
        for relative, (size, _) in _files(path, versions).items():
            if relative:
                targets[path / relative] = (temporary / name / _checked(path, relative), size)
            else:
                targets[path] = (temporary / name, size)
        for file, _ in targets.values():
            file.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_TRANSFERS) as pool:
            transfers = [pool.submit(_transfer, source, file, size) for source, (file, size) in targets.items()]
            try:
                for transfer in transfers:
                    transfer.result()
            except BaseException:
                # Those that have not begun would fail too, each after its own tries.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if client.versions(path) != versions:
            raise _ChangedError(f"{path} was changed while it was read; try again")
        temporary.replace(own)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, f"no space left for a copy in {own.parent}") from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _files(path: ObjectPath, versions: Versions) -> Versions:
    """Returns the objects that are files.

    A store's console makes a folder as an empty object, whose name is that of the folder.

    Raises:
      StoreError: an object that is not empty has the name of a folder.
    """
    folders = {""} if len(versions) > 1 else set()
    for relative in versions:
        parts = relative.split("/")
        folders |= {"/".join(parts[:count]) for count in range(1, len(parts))}
    files: dict[str, tuple[int, Tag]] = {}
    for relative, (size, tag) in versions.items():
        if relative not in folders:
            files[relative] = (size, tag)
        elif size:
            raise StoreError(f"{path / relative if relative else path} is both a file and a folder")
    return files


def _checked(path: ObjectPath, relative: str) -> str:
    """Returns an object's path relative to a folder, in which no part leads out of the mirror."""
    parts = relative.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        raise StoreError(f"{path} has an object whose path is not that of a file: {relative!r}")
    return relative


def _transfer(source: ObjectPath, file: Path, size: int) -> None:
    """Writes an object of so many bytes to a file."""
    if _received(source, file, size) != size:
        raise _ChangedError(f"{source} was changed while it was read; try again")


# A connection may break in the middle of a large object.
@client.transferred
def _received(source: ObjectPath, file: Path, most: int) -> int:
    """Writes an object to a file, up to about `most` bytes of it; returns the bytes that came."""
    received = 0
    with file.open("wb") as target:
        for piece in client.pieces(source):
            received += len(piece)
            # At once and not only at the end: an object that has become larger must not fill the disk.
            if received > most:
                break
            target.write(piece)
    return received


def _remove_abandoned() -> None:
    """Removes what processes that were killed have left."""
    for left in folder().glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > cache.LEFT_S:
                shutil.rmtree(left)


def _make_room(size: int) -> None:
    """Removes the least recently used mirrors that no process reads, until one of `size` bytes fits in the bound."""
    mirrors = []
    for mirror in folder().iterdir():
        # Another process may remove one at the same time.
        with suppress(OSError):
            if len(mirror.name) == _DIGITS and mirror.is_dir():
                files = [file.lstat().st_size for file in mirror.rglob("*") if not file.is_dir()]
                mirrors.append((mirror.lstat().st_mtime, sum(files), mirror))
    total = size + sum(bytes_of_mirror for _, bytes_of_mirror, _ in mirrors)
    for _, bytes_of_mirror, mirror in sorted(mirrors):
        if total <= cache.LARGEST:
            break
        with suppress(OSError, HeldError), locked_at_once(mirror.with_suffix(_LOCK)):
            if is_free(mirror.with_suffix(_USED)):
                # First the name: a mirror that is removed in part must not be found by it.
                left = mirror.rename(mirror.with_name(f"{_UNFINISHED}{random_part()}"))
                total -= bytes_of_mirror
                shutil.rmtree(left)
