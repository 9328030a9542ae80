"""Where the configs lie and where runs write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_project: list[Path] = []
# 32 bits: of a thousand folders made in one second, two share a name once in 8,600 times; `folders.claim` sees it.
_RANDOM_BYTES = 4


def conf_dir() -> Path:
    """Returns the program's config folder: inside the package (a wheel), else beside it (a checkout).

    Raises:
      RuntimeError: neither is there.
    """
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise RuntimeError(f"no conf/config.yaml in {_PACKAGE} or beside it; install the package again")


def project_root() -> Path:
    """Returns the project's folder: the current directory, as it was when the command began."""
    return _project[-1] if _project else Path.cwd()


@contextmanager
def project() -> Iterator[None]:
    """Keeps the project's folder where it is while a command runs: `hydra.job.chdir=true` changes the current one."""
    _project.append(Path.cwd())
    try:
        yield
    finally:
        _project.pop()


def outputs_dir() -> Path:
    """Returns the folder that runs write into, absolute."""
    return project_root() / "outputs"


def random_part() -> str:
    """Returns the end of a new folder's name.

    Two commands may start in the same second, and in two containers also with the same process id.
    """
    return os.urandom(_RANDOM_BYTES).hex()


def shown(path: Path) -> str:
    """Returns a path as a person is shown it: from the current directory, where it lies in that."""
    try:
        here = Path.cwd()
    except OSError:  # it was removed since the command began
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
