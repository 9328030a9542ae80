"""Folders of the configs, of the project and of the outputs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from runner.host import session

_PACKAGE = Path(__file__).resolve().parents[1]
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
    return session.current().project or Path.cwd()


def outputs_dir() -> Path:
    """Returns the absolute path of the folder that runs write into."""
    return project_root() / "outputs"


def random_part() -> str:
    """Returns a random end for a new folder's name: two commands may start in the same second."""
    return os.urandom(_RANDOM_BYTES).hex()


def shown(path: object) -> str:
    """Returns a path for a message: relative to the current directory if it is inside that."""
    # The current directory may have been removed since the command began.
    with suppress(OSError, ValueError):
        if isinstance(path, Path):
            return str(path.relative_to(Path.cwd()))
    return str(path)
