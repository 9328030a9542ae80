"""Reads, writes and lists the objects of a store.

obstore does the protocols, the retries of failed requests, the parallel upload of large objects in parts and the
search for credentials (environment variables, files that these name, and the metadata service of the machine). It was
compared with s3fs: one wheel of 16 MB in place of 20 packages of 52 MB for S3 alone, imported in 0.03 s in place of
1.2 s.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import EngineError, in_one_line
from runner.host import outputs, secrets
from runner.host.folders import cache_folder
from runner.host.late import late
from runner.host.stores.urls import ObjectPath, is_in_memory

if TYPE_CHECKING:
    import obstore
else:
    # A command whose folders are all local does not need it.
    obstore = late("obstore")

# Bytes of one part of an upload. Stores allow 10,000 parts, so an object may have 160 GB; a larger part would be sent
# again as a whole after an error.
PART = 16 << 20

# Parts in flight. Together they are the memory of an upload.
_UPLOADS = 4

# Bytes per piece of a transfer. A download is hashed while the next piece arrives.
_PIECE = 4 << 20

# A request that has no answer in this time is sent again. It must be enough for one part on a slow connection.
_REQUEST_TIMEOUT = timedelta(seconds=120)

# Seconds for which a failed request is sent again, so at least once after one that had no answer. While a save fails,
# other processes wait for several requests of this one, one after another: all must take less than `cluster.timeout`.
# Signatures are valid for 5 minutes.
_RETRY_S = 150.0

# Never reached. The library's own limit ends a request after 10 tries, which are over within 4 s.
_MAX_RETRIES = 1000

# Each wait is a random time between the first one and three times the last.
_BACKOFF = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=10),
    "base": 3,
}

# Seconds after which a line says that a store has not answered yet: its address may be wrong.
_SILENT_S = 10.0

_PREFIX = "copies-"
# Seconds after which the copies of a process that was killed are removed: no download takes a day.
_LEFT_S = 86400.0

_QUERY = re.compile(r"\?[^\s'\"]*")
_DOCUMENT = re.compile(r"<\?xml.*", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")

# What stores answer if there is no such bucket: the first one is of S3 and of Google Cloud Storage.
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}


class StoreError(OSError, EngineError):
    """A request that failed after all its retries; the text has no credentials.

    An OSError, so that code that handles a failing disk handles a failing store alike.
    """

    def __init__(self, message: str) -> None:
        super().__init__(errno.EIO, message)

    def __str__(self) -> str:
        return str(self.strerror)


class NoBucketError(StoreError):
    """A request to a bucket that does not exist, where a run without objects is a new one."""


class ChangedError(RuntimeError):
    """A conditional write that was rejected, because the object exists or was changed by another process."""


class MismatchError(RuntimeError):
    """An object that does not have the bytes that were written."""


class TooLargeError(RuntimeError):
    """An object that is larger than what a reader accepts."""


@cache
def _store(url: str) -> Any:
    """Returns the store of a bucket; its connections and credentials are reused."""
    if is_in_memory(url):
        return obstore.store.MemoryStore()
    retries = {
        "max_retries": _MAX_RETRIES,
        "retry_timeout": timedelta(seconds=_RETRY_S),
        "backoff": _BACKOFF,
    }
    # An endpoint without TLS is one that the user has named, such as a server on the same machine.
    options = {"timeout": _REQUEST_TIMEOUT, "allow_http": True}
    return obstore.store.from_url(url, client_options=options, retry_config=retries)


@contextmanager
def _requesting(path: ObjectPath) -> Iterator[None]:
    """Turns the library's errors into a `StoreError`, and warns if the store does not answer for long."""
    silent = f"{path.store} has not answered for {_SILENT_S:.0f} s; trying for up to {_RETRY_S / 60:.1f} minutes"
    reminder = threading.Timer(_SILENT_S, outputs.warn, [silent])
    reminder.daemon = True
    reminder.start()
    try:
        yield
    except (ChangedError, StoreError, TooLargeError):
        raise
    except Exception as error:
        # Without the cause: its text has the request's URL, which may be signed.
        text = str(error).partition("\n\nDebug source:")[0]
        code = _CODE.search(text)
        if code is not None and code[1] in _NO_BUCKET:
            raise NoBucketError(f"{path.store}: the bucket does not exist") from None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "does not exist", str(path)) from None
        # Without URLs' queries and without the server's XML.
        text = _QUERY.sub("", _DOCUMENT.sub("", text)) + ("" if code is None else code[1])
        raise StoreError(f"{path}: {in_one_line(secrets.scrub(text))}") from None
    finally:
        reminder.cancel()


def read(path: ObjectPath, largest: int | None = None) -> bytes:
    """Returns the content of an object of at most `largest` bytes.

    Raises:
      FileNotFoundError: there is no such object.
      TooLargeError: it is larger.
      StoreError: it can't be read.
    """
    with _requesting(path):
        answer = obstore.get(_store(path.store), path.key)
        if largest is not None and answer.meta["size"] > largest:
            raise TooLargeError(f"{path} is larger than {largest:,} bytes")
        return bytes(answer.bytes())


def pieces(path: ObjectPath) -> Iterator[bytes]:
    """Yields the content of an object in pieces of some megabytes; raises as `read` does."""
    with _requesting(path):
        answer = obstore.get(_store(path.store), path.key)
    stream = answer.stream(min_chunk_size=_PIECE)
    while True:
        with _requesting(path):
            piece = next(stream, None)
        if piece is None:
            return
        yield bytes(piece)


def size(path: ObjectPath) -> int | None:
    """Returns the bytes of an object; None: there is no such object. Raises StoreError."""
    try:
        with _requesting(path):
            return int(obstore.head(_store(path.store), path.key)["size"])
    except FileNotFoundError:
        return None


def write(path: ObjectPath, data: bytes) -> None:
    """Writes an object as a whole, or raises StoreError; readers see the former one or this one."""
    with _requesting(path):
        obstore.put(_store(path.store), path.key, data)


@dataclass
class Writer:
    """An open upload, whose errors are those of the store, by the library's writer."""

    path: ObjectPath
    stream: Any

    def write(self, data: bytes | memoryview) -> int:
        """Adds bytes."""
        with _requesting(self.path):
            return int(self.stream.write(data))


@contextmanager
def writing(path: ObjectPath) -> Iterator[Writer]:
    """Yields an upload in parts; the object exists when the block has ended.

    If the block fails, its error is raised as it is. An incomplete object may remain: only what names its digest makes
    it valid.

    Raises:
      StoreError: it can't be written.
    """
    with _requesting(path):
        stream = obstore.open_writer(_store(path.store), path.key, buffer_size=PART, max_concurrency=_UPLOADS)
    upload = Writer(path, stream)
    try:
        yield upload
    except StoreError:
        # To end the upload would be tried for as long again.
        raise
    except BaseException:
        # The upload ends, but what the store says to that is not the reason.
        with suppress(Exception):
            stream.close()
        raise
    with _requesting(path):
        stream.close()


def create(path: ObjectPath, data: bytes) -> None:
    """Writes an object that must not exist; of several processes at once, one succeeds.

    The content is one that no other process would write, so that the outcome of a lost answer can be read.

    Raises:
      ChangedError: the object exists.
      StoreError: it can't be written.
    """
    try:
        with _requesting(path):
            try:
                obstore.put(_store(path.store), path.key, data, mode="create")
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                raise ChangedError(str(path)) from None
    except ChangedError:
        # An earlier try may have succeeded although its answer was lost.
        if read(path) != data:
            raise


def names(folder: ObjectPath) -> list[str]:
    """Returns the names of the objects and folders in a folder, in order; raises StoreError."""
    with _requesting(folder):
        answer = obstore.list_with_delimiter(_store(folder.store), folder.key or None)
        paths = [*answer["common_prefixes"], *(entry["path"] for entry in answer["objects"])]
    # A set, because a store may have an object `a` next to objects below `a/`.
    return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})


def below(folder: ObjectPath) -> dict[str, int]:
    """Returns the bytes of all objects below a folder, by their path relative to it; raises StoreError."""
    sizes: dict[str, int] = {}
    with _requesting(folder):
        for entries in obstore.list(_store(folder.store), folder.key or None):
            for entry in entries:
                name = str(entry["path"]).removeprefix(folder.key).lstrip("/")
                sizes[name] = int(entry["size"])
    return sizes


def remove(path: ObjectPath) -> None:
    """Removes an object, or raises StoreError; one that does not exist is not an error."""
    with suppress(FileNotFoundError), _requesting(path):
        obstore.delete(_store(path.store), path.key)


@cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    """Returns the folder of this process's copies, which is removed as the process ends.

    It is in the user's cache: the temporary folder is often in memory, and a checkpoint may be larger than that.
    """
    parent = cache_folder("objects")
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _LEFT_S:
                shutil.rmtree(left)
    return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)


def fetch(path: ObjectPath, sha256: str, size: int) -> Path:
    """Returns this process's copy of an object with this SHA-256 and so many bytes, hashed as it arrives.

    Raises:
      FileNotFoundError: there is no such object.
      MismatchError: it has other bytes.
      OSError: it can't be read, or the disk is full.
    """
    # By a digest of our own: the recorded one may be any text.
    copy = Path(_copies().name) / hashlib.sha256(f"{path} {sha256}".encode()).hexdigest()
    if copy.exists():
        return copy
    temporary = copy.with_suffix(".part")
    digest = hashlib.sha256()
    received = 0
    try:
        # Another process has removed the folder if this one has not fetched for a day.
        copy.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for piece in pieces(path):
                received += len(piece)
                # At once and not only at the end: an object that has become larger must not fill the disk.
                if received > size:
                    raise MismatchError(f"{path} has more than the {size:,} bytes that were written")
                digest.update(piece)
                file.write(piece)
        if received != size:
            raise MismatchError(f"{path} has {received:,} bytes, but {size:,} were written")
        if digest.hexdigest() != sha256:
            raise MismatchError(f"{path} is corrupted (SHA-256 mismatch)")
        temporary.replace(copy)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, f"no space left for a copy in {copy.parent}") from None
        raise
    return copy
