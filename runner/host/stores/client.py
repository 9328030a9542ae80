"""Reads, writes and lists the objects of a store.

obstore does the protocols, the retries of failed requests, the parallel upload of large objects in parts, and the
search for credentials (environment variables, files that these name, and the metadata service of the machine). It was
compared with s3fs: one wheel of 16 MB in place of 20 packages of 52 MB for S3 alone, imported in 0.03 s in place of
1.2 s.
"""

from __future__ import annotations

import errno
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from runner.errors import EngineError, in_one_line
from runner.host import outputs, secrets
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

# What obstore does not send again: a conditional write that has no answer in time, because its first try may have
# succeeded, and a request whose answer was cut in its middle, such as a list, or the text of "not found". It does send
# a conditional write again after an error of the connection or of the server. A request that was cut is made again for
# `_RETRY_S`. Other errors last mostly, such as those of credentials, so they end a request after some tries.
_TRIES = 6
_LEAST_TRANSFERS = 4
_WAIT_S = 0.5
_LONGEST_WAIT_S = 5.0
# The HTTP library's words for a connection that was cut: before the answer, or in the body of either.
_CUT = re.compile(r"error sending request|request or response body error|error decoding response body")

# Seconds after which a line says that a store has not answered yet: its address may be wrong.
_SILENT_S = 10.0

Request = ParamSpec("Request")
Answer = TypeVar("Answer")

_QUERY = re.compile(r"\?[^\s'\"]*")
_DOCUMENT = re.compile(r"<\?xml.*", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")

# What stores answer if there is no such bucket: the first one is of S3 and of Google Cloud Storage.
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}


class StoreError(OSError, EngineError):
    """A request that failed after all its retries; the text has no credentials."""

    def __init__(self, message: str) -> None:
        # An OSError, so that code that handles a failing disk handles a failing store alike.
        super().__init__(errno.EIO, message)

    def __str__(self) -> str:
        return str(self.strerror)


class CutError(StoreError):
    """A request whose connection was cut before the end of its answer."""


class NoBucketError(StoreError):
    """A request to a bucket that does not exist.

    It is not a FileNotFoundError: a run without objects is a new one, but this one could save nothing.
    """


class ChangedError(RuntimeError):
    """A conditional write that was rejected, because the object exists or was changed by another process."""


class TooLargeError(RuntimeError):
    """An object that is larger than what a reader accepts."""


class Writer(Protocol):
    """An open upload."""

    def write(self, data: Any) -> int:
        """Adds bytes."""
        ...


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
def _reporting(path: ObjectPath) -> Iterator[None]:
    """Turns the library's errors into a `StoreError`, and lets those pass that callers distinguish."""
    try:
        yield
    except (ChangedError, StoreError, TooLargeError):
        raise
    except Exception as error:
        # Without the cause: its text has the request's URL, which may be signed.
        if _code(error) in _NO_BUCKET:
            raise NoBucketError(f"{path.store}: the bucket does not exist") from None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "does not exist", str(path)) from None
        kind = CutError if _CUT.search(_text(error)) else StoreError
        raise kind(f"{path}: {_reason(error)}") from None


def _code(error: Exception) -> str:
    """Returns the code in the server's XML in an error of the library; empty: there is none."""
    code = _CODE.search(_text(error))
    return "" if code is None else code[1]


def _text(error: Exception) -> str:
    return str(error).partition("\n\nDebug source:")[0]


def _reason(error: Exception) -> str:
    """Returns an error of the library in a few words, without URLs' queries and without the server's XML."""
    text = _QUERY.sub("", _DOCUMENT.sub("", _text(error)))
    return in_one_line(secrets.scrub(text + _code(error)))


@contextmanager
def _reminding(store: str) -> Iterator[None]:
    """Has a line say that a store has not answered yet if the block takes that long."""
    silent = f"{store} has not answered for {_SILENT_S:.0f} s; trying for up to {_RETRY_S / 60:.1f} minutes"
    reminder = threading.Timer(_SILENT_S, outputs.warn, [silent])
    reminder.daemon = True
    reminder.start()
    try:
        yield
    finally:
        reminder.cancel()


def _repeated(
    request: Callable[Concatenate[ObjectPath, Request], Answer], least_tries: int = 1
) -> Callable[Concatenate[ObjectPath, Request], Answer]:
    """Has a function make its request again after a `StoreError`: some times, or for `_RETRY_S` if it was cut.

    Each of these requests may be made twice: it reads, its second time leaves the store as the first one does, or it
    finds out that its first time has succeeded.

    Args:
      request: makes it once.
      least_tries: how often a request that is cut is made, however long that takes.
    """

    @functools.wraps(request)
    def repeated_request(path: ObjectPath, /, *args: Request.args, **kwargs: Request.kwargs) -> Answer:
        deadline = time.monotonic() + _RETRY_S
        wait = _WAIT_S
        tries = 0
        while True:
            tries += 1
            try:
                return request(path, *args, **kwargs)
            except NoBucketError:
                raise
            except StoreError as error:
                is_late = tries >= least_tries and time.monotonic() > deadline
                is_lasting = tries >= _TRIES and not isinstance(error, CutError)
                if is_late or is_lasting:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    return repeated_request


def transferred(
    request: Callable[Concatenate[ObjectPath, Request], Answer],
) -> Callable[Concatenate[ObjectPath, Request], Answer]:
    """Has a function begin its download again after a `StoreError`, as often at least as `_LEAST_TRANSFERS`.

    A large object takes longer than `_RETRY_S`, and may be cut near its end.
    """
    return _repeated(request, _LEAST_TRANSFERS)


def _answered(
    request: Callable[Concatenate[ObjectPath, Request], Answer],
) -> Callable[Concatenate[ObjectPath, Request], Answer]:
    """Has a function make its request again, and a line say that it has no answer yet if that takes long."""
    again = _repeated(request)

    @functools.wraps(request)
    def reminding_request(path: ObjectPath, /, *args: Request.args, **kwargs: Request.kwargs) -> Answer:
        with _reminding(path.store):
            return again(path, *args, **kwargs)

    return reminding_request


@_answered
def read(path: ObjectPath, largest: int | None = None) -> bytes:
    """Returns the content of an object.

    Args:
      path: of the object.
      largest: the largest accepted size in bytes; None: any.

    Raises:
      FileNotFoundError: there is no such object.
      TooLargeError: it is larger.
      StoreError: it can't be read.
    """
    with _reporting(path):
        answer = obstore.get(_store(path.store), path.key)
        if largest is not None and answer.meta["size"] > largest:
            raise TooLargeError(f"{path} is larger than {largest:,} bytes")
        return bytes(answer.bytes())


def pieces(path: ObjectPath) -> Iterator[bytes]:
    """Yields the content of an object in pieces of some megabytes; raises as `read` does."""
    with _reporting(path):
        with _reminding(path.store):
            answer = obstore.get(_store(path.store), path.key)
        yield from answer.stream(min_chunk_size=_PIECE)


@_answered
def size(path: ObjectPath) -> int | None:
    """Returns the bytes of an object; None: there is no such object.

    Raises:
      StoreError: the store does not answer.
    """
    try:
        with _reporting(path):
            return int(obstore.head(_store(path.store), path.key)["size"])
    except FileNotFoundError:
        return None


@_answered
def written_at(path: ObjectPath) -> float:
    """Returns when an object was written, in seconds since 1970; raises as `read` does."""
    with _reporting(path):
        return float(obstore.head(_store(path.store), path.key)["last_modified"].timestamp())


@_answered
def write(path: ObjectPath, data: bytes) -> None:
    """Writes an object as a whole; readers see the former one or this one.

    Raises:
      StoreError: it can't be written, or the store does not have it afterwards.
    """
    with _reporting(path):
        obstore.put(_store(path.store), path.key, data)
    _check_stored(path, len(data))


def _check_stored(path: ObjectPath, sent: int) -> None:
    """Checks that a store has an object that it said it had written; raises StoreError.

    Args:
      path: of the object.
      sent: its bytes.
    """
    stored = size(path)
    if stored != sent:
        has = "does not have it" if stored is None else f"has {stored:,} bytes of it"
        raise StoreError(f"{path}: {sent:,} bytes were sent and answered, but the store {has}")


@dataclass
class _Upload:
    """An open upload whose errors are those of the store.

    Attributes:
      path: of the object.
      stream: the library's writer.
      sent: bytes so far.
    """

    path: ObjectPath
    stream: Any
    sent: int = 0

    def write(self, data: Any) -> int:
        """Adds bytes."""
        with _reporting(self.path):
            count = int(self.stream.write(data))
        self.sent += memoryview(data).nbytes
        return count


@contextmanager
def writing(path: ObjectPath) -> Iterator[Writer]:
    """Yields an upload in parts; the object exists when the block has ended.

    If the block fails, its error is raised as it is. An incomplete object may remain: only what names its digest makes
    it valid.

    Raises:
      StoreError: it can't be written, or the store does not have all of it afterwards.
    """
    with _reporting(path):
        stream = obstore.open_writer(_store(path.store), path.key, buffer_size=PART, max_concurrency=_UPLOADS)
    upload = _Upload(path, stream)
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
    with _reporting(path):
        stream.close()
    _check_stored(path, upload.sent)


def upload(file: Path, path: ObjectPath) -> None:
    """Copies a local file into a store.

    Raises:
      OSError: the file can't be read, or the store can't be written.
    """
    with file.open("rb") as source, writing(path) as upload:
        while piece := source.read(_PIECE):
            upload.write(piece)


@_answered
def create(path: ObjectPath, data: bytes) -> None:
    """Writes an object that must not exist; of several processes at once, one succeeds.

    Args:
      path: of the object.
      data: its content, which no other process would write, so that the outcome of a lost answer can be read.

    Raises:
      ChangedError: the object exists.
      StoreError: it can't be written.
    """
    try:
        with _reporting(path):
            try:
                obstore.put(_store(path.store), path.key, data, mode="create")
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                raise ChangedError(str(path)) from None
    except ChangedError:
        # An earlier try may have succeeded although its answer was lost.
        if read(path) != data:
            raise


@_answered
def names(folder: ObjectPath) -> list[str]:
    """Returns the names of the objects and folders in a folder, in order.

    Raises:
      StoreError: the store does not answer.
    """
    with _reporting(folder):
        answer = obstore.list_with_delimiter(_store(folder.store), folder.key or None)
        paths = [*answer["common_prefixes"], *(entry["path"] for entry in answer["objects"])]
    # A set, because a store may have an object `a` next to objects below `a/`.
    return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})


@_answered
def below(folder: ObjectPath) -> dict[str, int]:
    """Returns the bytes of all objects below a folder, by their path relative to it.

    Raises:
      StoreError: the store does not answer.
    """
    sizes: dict[str, int] = {}
    with _reporting(folder):
        for entries in obstore.list(_store(folder.store), folder.key or None):
            for entry in entries:
                name = str(entry["path"]).removeprefix(folder.key).lstrip("/")
                sizes[name] = int(entry["size"])
    return sizes


@_answered
def copy(source: ObjectPath, target: ObjectPath) -> None:
    """Copies an object within its store.

    Raises:
      FileNotFoundError: there is no such object.
      StoreError: it can't be copied.
    """
    with _reporting(source):
        obstore.copy(_store(source.store), source.key, target.key)


@_answered
def remove(path: ObjectPath) -> None:
    """Removes an object; one that does not exist is not an error.

    Raises:
      StoreError: it can't be removed.
    """
    try:
        with _reporting(path):
            obstore.delete(_store(path.store), path.key)
    except FileNotFoundError:
        pass
