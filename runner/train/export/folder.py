"""The folder of an export: written atomically, and never in place of anything but an earlier export."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.checkpoint.runs import SavedRun
from runner.config.schema import ExportConfig
from runner.errors import EngineError, invalid
from runner.host.folders import remove_empty, remove_files
from runner.host.paths import outputs_dir

RECORD = "export.json"
_KEY = "export.folder"


def target(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export.

    Raises:
      ConfigError: the folder has other files than an earlier export's.
    """
    if config.folder:
        path = Path(config.folder).expanduser().absolute()
    else:
        path = outputs_dir() / "exports" / run.id
    if path.exists() and not _is_ours(path):
        raise invalid(
            _KEY,
            path,
            problem="must be a new or empty folder, or an earlier export without other files",
            fix=f"set {_KEY}={path}/export",
        )
    return path


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
    """Yields a folder beside the target, which takes the target's place if the block succeeds."""
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
