"""Private copies of files below a run's folder, opened without following a link."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Missing flags are those of other systems. O_NONBLOCK: opening a FIFO that somebody put there must not wait.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER_FLAGS = os.O_RDONLY | _NO_LINKS | getattr(os, "O_DIRECTORY", 0)
_FILE_FLAGS = os.O_RDONLY | _NO_LINKS


@contextmanager
def private_copy(folder: Path, path: Path) -> Iterator[Path]:
    """Copies a file to where nobody else can replace it, and removes the copy later.

    Args:
      folder: folder that the file must be in, at any depth; absolute.
      path: the file; absolute.

    Yields:
      The copy, which has the same name.

    Raises:
      ValueError: the file is not below the folder, a link leads to it, it is not a regular file, or another user owns
        it.
      OSError: there is no space for the copy.
    """
    handle = _open_below(folder, path)
    with os.fdopen(handle, "rb") as source:
        # The open file is checked, not its path, which could lead to another file by now.
        _check(path, os.fstat(handle))
        with tempfile.TemporaryDirectory(prefix="runner-artifact-") as directory:
            copy = Path(directory) / path.name
            with copy.open("xb") as target:
                shutil.copyfileobj(source, target)
            yield copy


def _open_below(folder: Path, path: Path) -> int:
    """Opens a file that must be below a folder; returns its descriptor."""
    parts = Path(os.path.normpath(path)).parts
    folder_parts = Path(os.path.normpath(folder)).parts
    if len(parts) <= len(folder_parts) or parts[: len(folder_parts)] != folder_parts:
        raise ValueError(f"{path} is not below the run's folder {folder}")
    names = parts[len(folder_parts) :]
    try:
        return _open_step_by_step(Path(os.path.realpath(folder)), names)
    except OSError as error:
        # A link or a missing file. A ValueError, because a retry would not help.
        raise ValueError(f"{path} can't be opened without following a link: {error.strerror}") from error


def _open_step_by_step(folder: Path, names: tuple[str, ...]) -> int:
    """Opens each folder relative to the one above it.

    So none of them can be replaced by a link meanwhile.
    """
    if os.open not in os.supports_dir_fd:
        return _open_by_path(folder, names)
    directory = os.open(folder, _FOLDER_FLAGS)
    try:
        _check(folder, os.fstat(directory), is_folder=True)
        for name in names[:-1]:
            subdirectory = os.open(name, _FOLDER_FLAGS, dir_fd=directory)
            os.close(directory)
            directory = subdirectory
        return os.open(names[-1], _FILE_FLAGS, dir_fd=directory)
    finally:
        os.close(directory)


def _open_by_path(folder: Path, names: tuple[str, ...]) -> int:
    """Opens a file where the system has no descriptors of folders (Windows)."""
    path = folder.joinpath(*names)
    if Path(os.path.realpath(path)) != path:
        raise ValueError(f"a link leads to {path}")
    return os.open(path, _FILE_FLAGS)


def _check(path: Path, status: os.stat_result, *, is_folder: bool = False) -> None:
    if os.name != "nt" and status.st_uid != os.getuid():
        raise ValueError(f"{path} belongs to another user")
    if not is_folder and not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is not a regular file")
