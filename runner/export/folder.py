"""Where an export goes: a folder that appears whole or not at all, and replaces nothing but an earlier export."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.config.schema import ExportConfig
from runner.errors import EngineError, invalid
from runner.host.folders import remove_empty, remove_files
from runner.host.paths import outputs_dir
from runner.training.checkpoint.runs import SavedRun

RECORD = "export.json"
_KEY = "export.folder"


def target(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export.

    Raises:
      ConfigError: something else is there already.
    """
    path = Path(config.folder).expanduser().absolute() if config.folder else outputs_dir() / "exports" / run.run
    if path.exists() and not _is_ours(path):
        raise invalid(
            _KEY,
            path,
            problem="a folder that is not there, is empty or holds an earlier export and nothing else",
            fix=f"set {_KEY}={path}/export",
        )
    return path


def _is_ours(path: Path) -> bool:
    """Returns whether a folder holds nothing but what an export says that it wrote."""
    if not path.is_dir():
        return False
    there = set(_files(path))
    return not there or there <= set(_recorded(path))


def _files(path: Path) -> list[str]:
    return sorted(one.relative_to(path).as_posix() for one in path.rglob("*") if not one.is_dir() or one.is_symlink())


def _recorded(path: Path) -> list[str]:
    try:
        return [RECORD, *map(str, json.loads((path / RECORD).read_text())["files"])]
    except (OSError, ValueError, TypeError, KeyError):
        return []


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yields a folder beside the target, which takes the target's place if all goes well.

    Args:
      path: the target.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    around = Path(tempfile.mkdtemp(prefix=f".unfinished-{path.name}-", dir=path.parent))  # a name that nobody has
    new = around / "new"
    old = around / "old"
    new.mkdir()
    try:
        yield new
        _record_files(new)
        if path.exists() and not _is_ours(path):  # an export takes minutes
            raise EngineError(f"{_KEY}={path} holds what no export wrote, since this one began; nothing was written")
        try:
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise
        remove_files(old, _recorded(old))
    finally:
        shutil.rmtree(new, ignore_errors=True)
        remove_empty([old, around])


def _record_files(folder: Path) -> None:
    """Adds to an export's record which files it wrote: what a later one may replace."""
    record = folder / RECORD
    content = json.loads(record.read_text()) | {"files": [one for one in _files(folder) if one != RECORD]}
    record.write_text(json.dumps(content, indent=1) + "\n")
