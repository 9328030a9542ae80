"""Files below a run's own folder, opened without following a link."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | _NO_LINKS | getattr(os, "O_DIRECTORY", 0)
_FILE = os.O_RDONLY | _NO_LINKS | getattr(os, "O_BINARY", 0)


@contextmanager
def copied(folder: Path, path: Path) -> Iterator[Path]:
    """Copies a file to where nobody else can exchange it, for as long as the body lasts.

    Args:
      folder: that it must be in, or in a folder of it; both absolute.
      path: the file.

    Yields:
      The copy, of the same name.

    Raises:
      ValueError: it is not below the folder, a link leads to it, it is no file, or another user owns it.
      OSError: there is no room for the copy.
    """
    handle = _opened(folder, path)
    with os.fdopen(handle, "rb") as source:
        _check(path, os.fstat(handle))
        with tempfile.TemporaryDirectory(prefix="runner-artifact-") as place:
            copy = Path(place) / path.name
            with copy.open("xb") as target:
                shutil.copyfileobj(source, target)
            yield copy


def _opened(folder: Path, path: Path) -> int:
    parts = Path(os.path.normpath(path)).parts
    above = Path(os.path.normpath(folder)).parts
    if len(parts) <= len(above) or parts[: len(above)] != above:
        raise ValueError(f"{path} is not below the run's folder {folder}")
    inner = parts[len(above) :]
    try:
        return _descend(Path(os.path.realpath(folder)), inner)
    except OSError as error:  # a link, or not there: trying again would not help
        raise ValueError(f"{path} can't be opened without following a link: {error.strerror}") from error


def _descend(folder: Path, inner: tuple[str, ...]) -> int:
    if os.open not in os.supports_dir_fd:
        return _open_by_path(folder, inner)
    place = os.open(folder, _FOLDER)
    try:
        _check(folder, os.fstat(place), is_folder=True)
        for name in inner[:-1]:
            lower = os.open(name, _FOLDER, dir_fd=place)
            os.close(place)
            place = lower
        return os.open(inner[-1], _FILE, dir_fd=place)
    finally:
        os.close(place)


def _open_by_path(folder: Path, inner: tuple[str, ...]) -> int:
    path = folder.joinpath(*inner)
    if Path(os.path.realpath(path)) != path:
        raise ValueError(f"a link leads to {path}")
    return os.open(path, _FILE)


def _check(path: Path, found: os.stat_result, *, is_folder: bool = False) -> None:
    if os.name != "nt" and found.st_uid != os.getuid():
        raise ValueError(f"{path} belongs to another user")
    if not is_folder and not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is not a file")
