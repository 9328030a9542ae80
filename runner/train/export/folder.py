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
from runner.host.paths import outputs_dir

RECORD = "export.json"
_KEY = "export.folder"


def target(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export; raises ConfigError if it has other files than an earlier export's."""
    path = outputs_dir() / "exports" / run.id
    if config.folder:
        path = Path(config.folder).expanduser().absolute()
    if path.exists() and not _is_ours(path):
        problem = "must be a new or empty folder, or an earlier export without other files"
        raise invalid(_KEY, path, problem=problem, fix=f"set {_KEY}={path}/export")
    return path


def _is_ours(path: Path) -> bool:
    """Returns whether a folder has no other files than those that an export recorded."""
    if not path.is_dir():
        return False
    try:
        recorded = {RECORD, *map(str, json.loads((path / RECORD).read_text())["files"])}
    except (OSError, ValueError, TypeError, KeyError):
        recorded = set()
    return set(_files(path)) <= recorded


def _files(path: Path) -> list[str]:
    """Returns the relative paths of all files below a folder; a link counts as a file."""
    found = [child for child in path.rglob("*") if not child.is_dir() or child.is_symlink()]
    return sorted(child.relative_to(path).as_posix() for child in found)


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
        # What a later export may replace.
        record = json.loads((new / RECORD).read_text())
        record["files"] = [name for name in _files(new) if name != RECORD]
        (new / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        # Checked again: an export takes minutes, in which somebody may have written there.
        if path.exists() and not _is_ours(path):
            raise EngineError(f"{_KEY}={path}: other files were written there during the export; nothing was exported")
        if path.exists():
            path.rename(old)
        new.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        # The earlier export goes only when the new one is in its place.
        shutil.rmtree(workspace, ignore_errors=True)
