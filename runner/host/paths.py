"""Folders of the configs, of the project and of the outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.host.stores.urls import ObjectPath, Place

_PACKAGE = Path(__file__).resolve().parents[1]
# The project's folder of the command that runs, if one does; process-wide, as the current directory is.
_project: list[Path] = []
# 32 bits: of a thousand folders made in one second, two share a name once in 8,600 times. `folders.claim` rejects the
# second one.
_RANDOM_BYTES = 4


def conf_dir() -> Path:
    """Returns the runner's config folder: inside the package (a wheel), else beside it (a checkout)."""
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise RuntimeError(f"{_PACKAGE}: there is no conf/config.yaml in it or beside it; reinstall the package")


def project_root() -> Path:
    """Returns the project's folder: the current directory, as it was when the command began."""
    return _project[-1] if _project else Path.cwd()


@contextmanager
def project() -> Iterator[None]:
    """Fixes the project's folder while a command runs: `hydra.job.chdir=true` changes the current directory."""
    _project.append(Path.cwd())
    try:
        yield
    finally:
        _project.pop()


def outputs_dir() -> Path:
    """Returns the absolute path of the folder that runs write into."""
    return project_root() / "outputs"


def random_part() -> str:
    """Returns a random end for a new folder's name: two commands may start in the same second."""
    return os.urandom(_RANDOM_BYTES).hex()


def shown(path: Place) -> str:
    """Returns a path for a message: relative to the current directory if it is inside that."""
    if isinstance(path, ObjectPath):
        return str(path)
    try:
        here = Path.cwd()
    except OSError:
        # The current directory was removed since the command began.
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
