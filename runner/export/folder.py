"""The folder of an export: written atomically, and never in place of anything but an earlier export.

An export into an object store is made in the local folder of the run's exports, and then copied there.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.config.schema import ExportConfig
from runner.errors import ConfigError, EngineError, invalid
from runner.host.folders import remove_empty, remove_files
from runner.host.paths import outputs_dir
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath, is_url
from runner.training.checkpoint.runs import SavedRun

RECORD = "export.json"
_KEY = "export.folder"
# In a store, the record of a copy that is not finished.
_UNFINISHED = "unfinished-export.json"
# Bytes of a record, which names some hundred files at most.
_LARGEST_RECORD = 4 << 20


def target(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export.

    Raises:
      ConfigError: the folder has other files than an earlier export's.
    """
    if config.folder and not is_url(config.folder):
        path = Path(config.folder).expanduser().absolute()
    else:
        path = outputs_dir() / "exports" / run.id
    if path.exists() and not _is_ours(path):
        raise _taken(path, "files")
    return path


def store_target(config: ExportConfig) -> ObjectPath | None:
    """Returns the folder of an object store that gets a copy of the export; None: there is none.

    Raises:
      ConfigError: the folder has other objects than an earlier export's.
      OSError: the store does not answer.
    """
    if not config.folder or not is_url(config.folder):
        return None
    path = ObjectPath.of(config.folder)
    if not set(client.below(path)) <= set(_stored(path)):
        raise _taken(path, "objects")
    return path


def _taken(path: Path | ObjectPath, content: str) -> ConfigError:
    """Returns the error for a folder with other content than an earlier export's."""
    return invalid(
        _KEY,
        path,
        problem=f"must be a new or empty folder, or an earlier export without other {content}",
        fix=f"set {_KEY}={path}/export",
    )


def _stored(path: ObjectPath) -> list[str]:
    """Returns the objects that an export, or a copy that was not finished, recorded as its own."""
    names = [RECORD, _UNFINISHED]
    for record in (RECORD, _UNFINISHED):
        # Without a valid record, whatever is there is somebody else's.
        with suppress(FileNotFoundError, client.TooLargeError, ValueError, TypeError, KeyError):
            names += map(str, json.loads(client.read(path / record, _LARGEST_RECORD))["files"])
    return names


def upload(folder: Path, path: ObjectPath) -> None:
    """Copies an export into an object store, in place of an earlier one.

    Its record is removed first and written last: without it, an export there is not whole.

    Args:
      folder: of the export.
      path: of the copy.

    Raises:
      OSError: the store can't be written.
    """
    earlier = _stored(path)
    names = [name for name in _files(folder) if name != RECORD]
    # If the copy fails, the next export sees by this what it may replace.
    client.write(path / _UNFINISHED, json.dumps({"files": sorted({*earlier, *names})}).encode())
    client.remove(path / RECORD)
    for name in names:
        client.upload(folder / name, path / name)
    for name in set(earlier) - {RECORD, _UNFINISHED, *names}:
        client.remove(path / name)
    client.write(path / RECORD, (folder / RECORD).read_bytes())
    client.remove(path / _UNFINISHED)


def _is_ours(path: Path) -> bool:
    """Returns whether a folder has no other files than those that an export recorded."""
    if not path.is_dir():
        return False
    files = set(_files(path))
    return not files or files <= set(_recorded(path))


def _files(path: Path) -> list[str]:
    """Returns the relative paths of all files below a folder; a link counts as a file."""
    names: list[str] = []
    for child in path.rglob("*"):
        if not child.is_dir() or child.is_symlink():
            names.append(child.relative_to(path).as_posix())
    return sorted(names)


def _recorded(path: Path) -> list[str]:
    """Returns the files that an export recorded as its own; empty if there is no valid record."""
    try:
        return [RECORD, *map(str, json.loads((path / RECORD).read_text())["files"])]
    except (OSError, ValueError, TypeError, KeyError):
        return []


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yields a folder beside the target, which takes the target's place if the block succeeds.

    Args:
      path: the target.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system as the target, so that renames are atomic.
    workspace = Path(tempfile.mkdtemp(prefix=f".unfinished-{path.name}-", dir=path.parent))
    new = workspace / "new"
    old = workspace / "old"
    new.mkdir()
    try:
        yield new
        _record_files(new)
        # Checked again: an export takes minutes, in which somebody may have written there.
        if path.exists() and not _is_ours(path):
            raise EngineError(f"{_KEY}={path}: other files were written there during the export; nothing was exported")
        try:
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise
        # The earlier export goes only when the new one is in its place.
        remove_files(old, _recorded(old))
    finally:
        shutil.rmtree(new, ignore_errors=True)
        remove_empty([old, workspace])


def _record_files(folder: Path) -> None:
    """Adds to an export's record the files that it wrote, which a later export may replace."""
    record = folder / RECORD
    content = json.loads(record.read_text())
    content["files"] = [name for name in _files(folder) if name != RECORD]
    record.write_text(json.dumps(content, indent=1) + "\n")
