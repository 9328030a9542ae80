"""Files of checkpoints, in a local folder or in an object store: careful reads and durable writes.

Reads are careful because a folder may come from anyone. An object store has no rename, no lock and no folder: what a
local folder does with these is done there with conditional writes (`create`) and with one object that is written last.

obstore does the protocols of the stores, the retries of failed requests, the parallel upload of large objects in parts
and the search for credentials (environment variables, files that these name, and the metadata service of the machine).
It was compared with s3fs: one wheel of 16 MB in place of 20 packages of 52 MB for S3 alone, imported in 0.03 s in
place of 1.2 s.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner.checkpoint.places import ObjectPath, Place
from runner.config.build import build, fields_of
from runner.config.urls import is_in_memory
from runner.data.cache import cache_folder
from runner.errors import ConfigError, EngineError, in_one_line
from runner.host import secrets
from runner.host.folders import OWN_MODE
from runner.host.late import late

if TYPE_CHECKING:
    import obstore
else:
    # A command whose folders are all local does not need it.
    obstore = late("obstore")

Record = TypeVar("Record")

# Bytes of run.json. A command line has two million bytes at most, so twice that holds every record, and
# a larger file from elsewhere takes no memory.
LARGEST_RECORD = 4 << 20

# Bytes of one part of an upload. Stores allow 10,000 parts, so an object may have 160 GB; a larger part would be sent
# again as a whole after an error.
PART = 16 << 20

# Parts in flight. Together they are the memory of an upload.
_UPLOADS = 4

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

_QUERY = re.compile(r"\?[^\s'\"]*")
_DOCUMENT = re.compile(r"<\?xml.*", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")


class DamagedError(ConfigError):
    """A file of a run or checkpoint that is missing, corrupted or invalid."""


class StoreError(OSError, EngineError):
    """A request that failed after all its retries; the text has no credentials.

    An OSError, so that code that handles a failing disk handles a failing store alike.
    """

    def __init__(self, message: str) -> None:
        super().__init__(errno.EIO, message)

    def __str__(self) -> str:
        return str(self.strerror)


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
def _requesting(path: ObjectPath) -> Iterator[Any]:
    """Yields the store of an object, whose errors become a `StoreError`."""
    try:
        yield _store(path.store)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "does not exist", str(path)) from None
    except Exception as error:
        # Without the cause: its text has the request's URL, which may be signed. Without URLs' queries and without the
        # server's XML.
        text = str(error).partition("\n\nDebug source:")[0]
        code = _CODE.search(text)
        text = _QUERY.sub("", _DOCUMENT.sub("", text)) + ("" if code is None else code[1])
        raise StoreError(f"{path}: {in_one_line(secrets.scrub(text))}") from None


@contextmanager
def opened(path: Place, largest: int) -> Iterator[BufferedReader | BufferedRandom]:
    """Opens a regular file, or this process's own copy of an object, of at most `largest` bytes for reading.

    The copy has no name, so the system removes it when it is closed or the process ends in any way. It is in the
    user's cache: the temporary folder is often in memory, and a checkpoint may be larger than that.

    A DamagedError says that it is missing, too large or can't be read. A link would lead out of the folder, and a FIFO
    blocks until somebody writes into it, so these are rejected too. A StoreError (no answer, or a full disk) is no
    damage, for which a run would continue from an earlier checkpoint.
    """
    try:
        file: BufferedReader | BufferedRandom
        if isinstance(path, ObjectPath):
            file = _copied(path, largest)
        elif not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is not a regular file")
        else:
            file = path.open("rb")
        with file:
            if os.fstat(file.fileno()).st_size > largest:
                raise DamagedError(f"{path} is larger than {largest:,} bytes")
            yield file
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except StoreError:
        raise
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror}") from error


def _copied(path: ObjectPath, largest: int) -> BufferedRandom:
    with _requesting(path) as store:
        answer = obstore.get(store, path.key)
        folder = cache_folder("objects")
        folder.mkdir(parents=True, exist_ok=True)
        copy = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by who reads it
        for piece in answer.stream():
            copy.write(piece)
            # A larger object must not fill the disk.
            if copy.tell() > largest:
                break
    copy.seek(0)
    return copy


def read_json(path: Place, largest: int) -> dict[str, Any]:
    """Reads a JSON object of at most `largest` bytes; raises as `opened` does."""
    with opened(path, largest) as file:
        data = file.read()
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} can't be read: it is not valid JSON") from error
    if not isinstance(content, dict):
        raise DamagedError(f"{path} can't be read: it must hold a JSON object")
    return content


def as_record(kind: type[Record], content: Mapping[str, object], path: Place) -> Record:
    """Returns JSON as a dataclass; other entries are ignored; raises DamagedError for a value of another type."""
    known = {name: content[name] for name in fields_of(kind) if name in content}
    try:
        return build(kind, known, "it", strict=True)
    except ConfigError as error:
        raise DamagedError(f"{path} is invalid: {in_one_line(str(error))}") from None


def sealed(content: Mapping[str, object]) -> dict[str, Any]:
    """Returns a record with its own SHA-256 in it."""
    return {**content, "sha256": _seal(content)}


def unsealed(content: Mapping[str, object], path: Place) -> dict[str, Any]:
    """Returns a record without its SHA-256; raises DamagedError if that is another one."""
    covered = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != _seal(covered):
        raise DamagedError(f"{path} is corrupted (SHA-256 mismatch)")
    return covered


def _seal(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write(path: Place, data: bytes) -> None:
    """Writes a file at once; it is on the disk, or in its store, when this returns."""
    if isinstance(path, ObjectPath):
        with _requesting(path) as store:
            obstore.put(store, path.key, data)
        return
    temporary = path.with_name(f".unfinished-{path.name}-{os.getpid()}")
    # A process that died may have left a file of this name: the system gives its process id to others again.
    temporary.unlink(missing_ok=True)
    try:
        # The content is synced before the rename, else the new name could survive a power cut without its content.
        _write_synced(temporary, data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    # Others must not write to it, whatever the umask is: the user's own records are trusted.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_pieces(path: Place, pieces: Iterator[memoryview]) -> None:
    """Writes a large new file, as durable as `write` does; if it fails, a part of a local file may remain."""
    if isinstance(path, ObjectPath):
        with _requesting(path) as store:
            obstore.put(store, path.key, pieces, chunk_size=PART, max_concurrency=_UPLOADS)
        return
    # The user decides with the folder's mode who else may read the files.
    mode = stat.S_IMODE(path.parent.stat().st_mode) & 0o666
    with path.open("xb") as file:
        path.chmod(mode)
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def create(path: Place, data: bytes) -> None:
    """Writes a file that must not exist; of several processes at once, one succeeds; raises FileExistsError.

    The content is one that no other process would write, so that the outcome of a lost answer can be read.
    """
    if not isinstance(path, ObjectPath):
        _write_synced(path, data)  # exclusive, also on network file systems
        return
    with _requesting(path) as store:
        try:
            obstore.put(store, path.key, data, mode="create")
            return
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            # An earlier try may have succeeded although its answer was lost.
            found = obstore.get(store, path.key).bytes()
    if bytes(found) != data:
        raise FileExistsError(errno.EEXIST, "exists", str(path))


def names(folder: Place) -> list[str]:
    """Returns the names in a folder; none if a local one can't be read; raises StoreError."""
    if isinstance(folder, ObjectPath):
        with _requesting(folder) as store:
            answer = obstore.list_with_delimiter(store, folder.key or None)
            paths = [*answer["common_prefixes"], *(entry["path"] for entry in answer["objects"])]
        # A set, because a store may have an object `a` next to objects below `a/`.
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def exists(path: Place) -> bool:
    """Returns whether a file exists, of whatever kind; raises StoreError."""
    if not isinstance(path, ObjectPath):
        return os.path.lexists(path)
    try:
        with _requesting(path) as store:
            obstore.head(store, path.key)
    except FileNotFoundError:
        return False
    return True


def is_folder(path: Place) -> bool:
    """Returns whether a path is a folder, or may be one in a store; a link to one is not."""
    return isinstance(path, ObjectPath) or (path.is_dir() and not path.is_symlink())


def remove(path: Place) -> None:
    """Removes a regular file, if it exists; a link, a folder or a device stays."""
    if isinstance(path, ObjectPath):
        with suppress(FileNotFoundError), _requesting(path) as store:
            obstore.delete(store, path.key)
    elif path.is_file() and not path.is_symlink():
        path.unlink(missing_ok=True)


def remove_folder(folder: Place) -> None:
    """Removes a folder with all that is in it; a link stays."""
    if isinstance(folder, ObjectPath):
        with _requesting(folder) as store:
            for entries in obstore.list(store, folder.key):
                obstore.delete(store, [entry["path"] for entry in entries])
    elif is_folder(folder):
        shutil.rmtree(folder)


def remove_empty(folder: Place) -> None:
    """Removes a folder if it is empty; a store has no folders."""
    if not isinstance(folder, ObjectPath):
        with suppress(OSError):
            folder.rmdir()


def make_folder(folder: Place) -> None:
    """Makes a folder of this user that is on the disk when this returns; a store has no folders."""
    if not isinstance(folder, ObjectPath):
        folder.mkdir(OWN_MODE, parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Place) -> None:
    """Makes renames in a folder durable."""
    if isinstance(folder, ObjectPath):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
