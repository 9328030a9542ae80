"""Where an export goes: a folder that appears whole or not at all, and replaces nothing but an earlier export."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.checkpoint.runs import SavedRun
from runner.errors import refuse
from runner.paths import outputs_dir
from runner.schema import ExportConfig

RECORD = "export.json"
_KEY = "export.folder"


def target(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export.

    Raises:
      ConfigError: something else is there already.
    """
    path = Path(config.folder).expanduser().absolute() if config.folder else outputs_dir() / "exports" / run.run
    if path.exists() and not _is_ours(path):
        raise refuse(
            _KEY,
            path,
            allowed="a folder that is not there, is empty or holds an earlier export",
            mend=f"set {_KEY}={path}/export",
        )
    return path


def _is_ours(path: Path) -> bool:
    if not path.is_dir():
        return False
    if not any(path.iterdir()):
        return True
    try:
        return "signature" in json.loads((path / RECORD).read_text())
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yields a folder beside the target, which takes the target's place if all goes well.

    Args:
      path: the target.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".unfinished-{path.name}-{os.getpid()}")
    old = path.with_name(f"{new.name}-old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        try:
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
