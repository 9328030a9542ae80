"""Folders that a command writes into: only its own files are ever written over, and only its own are removed."""

from __future__ import annotations

import errno
import os
import platform
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.errors import ConfigError, invalid
from runner.host.lock import HeldError, lock_until_exit

MARK = ".runner"  # lies in each folder that a command has claimed, and is locked while its process lives
_RUN = "run: "
_PROCESS = "process: "
_ATTEMPTS = 100  # each needs another command that is refused at the same moment
_MARKED = "A run wrote what lies beside this file; another run into this folder writes over it."


@dataclass(frozen=True)
class Claim:
    """A folder that a command may write into.

    Attributes:
      folder: absolute.
      made: folders that were not there before, the innermost first.
      fresh: whether it held nothing before, so that what the command's start puts there is new.
    """

    folder: Path
    made: tuple[Path, ...]
    fresh: bool

    def withdraw(self, names: Iterable[str]) -> None:
        """Removes a command's first files, and the folders that were made for them, where nothing else is in them.

        Args:
          names: paths in the folder, of files that were not there before if the claim is fresh.
        """
        # Some systems can't remove a file that is open.
        _release(self.folder / MARK)
        if self.fresh:
            remove_files(self.folder, [*names, MARK])
        remove_empty(self.made)


# The marks that this process has locked: device and inode to the open file. A process may claim a folder twice.
_locked: dict[tuple[int, int], int] = {}


def _forget_locks() -> None:
    """Closes a forked child's copies: the folder is its parent's, and is free when that ends."""
    for handle in _locked.values():
        os.close(handle)
    _locked.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_locks)


def claim(key: str, path: Path | str, *, hold: bool = True) -> Claim:
    """Makes a folder, or takes one that is empty or that an earlier command claimed, and that no process writes into.

    Args:
      key: that names the folder, for the refusal.
      path: the folder.
      hold: whether to keep others out of it until this process ends; False for a folder that another process is to
        claim in turn.

    Raises:
      ConfigError: it holds something else, another process writes into it, or it can't be made.
    """
    folder = Path(path).absolute()
    check(key, folder)
    made: tuple[Path, ...] = ()
    fresh = not (folder / MARK).is_file()
    try:
        made = _make(key, folder)
        handle = _lock(folder / MARK)
        if fresh:
            _write_mark(folder)
        elif hold:
            with suppress(OSError):  # another user's mark, perhaps; what it says is for people only
                _write_mark(folder, *_run_line(folder))
    except HeldError as error:
        raise invalid(
            key,
            folder,
            problem=f"a folder that no other process writes into, and {_writer(folder)} does",
            fix=f"set {key}={folder}-2",
        ) from error
    except OSError as error:
        remove_empty(made)
        raise _cannot(key, folder, error) from error
    if handle is not None and not hold:
        _release(folder / MARK)
    return Claim(folder, made, fresh)


def _make(key: str, folder: Path) -> tuple[Path, ...]:
    """Makes a folder where it is not there; returns the folders that were made for it, the innermost first."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    for _ in range(_ATTEMPTS):
        # A command that is refused at this moment takes back the parents that it made, as long as they are empty.
        with suppress(FileNotFoundError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                # Of two processes that make one folder at the same time, only one takes it back when it is refused.
                folder.mkdir()
            except FileExistsError:
                check(key, folder)
                return ()
            return (folder, *missing)
    raise FileNotFoundError(errno.ENOENT, "its parent is removed again and again", str(folder))


def _lock(mark: Path) -> int | None:
    """Locks a mark until this process ends; returns the file if this call locked it."""
    if _key_of(mark) in _locked:
        return None
    handle = lock_until_exit(mark)
    if handle is not None:
        status = os.fstat(handle)
        _locked[status.st_dev, status.st_ino] = handle
    return handle


def _release(mark: Path) -> None:
    handle = _locked.pop(_key_of(mark), None)
    if handle is not None:
        os.close(handle)


def _key_of(path: Path) -> tuple[int, int]:
    try:
        status = path.lstat()
    except OSError:
        return (-1, -1)
    return status.st_dev, status.st_ino


def _write_mark(folder: Path, *lines: str) -> None:
    process = f"{_PROCESS}{os.getpid()} on {platform.node()}"
    (folder / MARK).write_text("".join(line + "\n" for line in (_MARKED, process, *lines)))


def _run_line(folder: Path) -> list[str]:
    run = noted_run(folder)
    return [] if run is None else [f"{_RUN}{run}"]


def _writer(folder: Path) -> str:
    """Returns in words which process writes into a folder."""
    process = _noted(folder, _PROCESS)
    return f"process {process}" if process else "another process"


def note_run(folder: Path, run: str) -> None:
    """Notes in the mark of a claimed folder which run wrote it.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    _write_mark(folder, f"{_RUN}{run}")


def noted_run(folder: Path) -> str | None:
    """Returns the run that a folder's mark names; None where it names none."""
    return _noted(folder, _RUN)


def _noted(folder: Path, field: str) -> str | None:
    try:
        lines = (folder / MARK).read_text().splitlines()
    except (OSError, ValueError):
        return None
    return next((line.removeprefix(field) for line in lines if line.startswith(field)), None)


def check(key: str, folder: Path) -> None:
    """Refuses a folder that a command must not write into; see `claim`, which makes it."""
    try:
        if folder.is_dir() and not (folder / MARK).is_file() and any(folder.iterdir()):
            raise invalid(
                key,
                folder,
                problem="a folder that is not there, is empty or that an earlier run made, so that no file of "
                "yours is written over",
                fix=f"set {key}={folder / 'run'}",
            )
        if folder.exists() and not folder.is_dir():
            raise invalid(key, folder, problem="a folder, and this is a file", fix=f"set {key} to another path")
    except OSError as error:
        raise _cannot(key, folder, error) from error


def _cannot(key: str, folder: Path, error: OSError) -> ConfigError:
    return invalid(key, folder, problem=f"a folder that can be written ({error.strerror})", fix=f"set {key} to one")


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes files of a folder by name, and then those folders below it that this left empty.

    Args:
      folder: stays itself.
      names: paths in the folder; one that is not there, or is no file, is left alone.
    """
    below = set()
    for name in names:
        path = folder / name
        if path.is_file() or path.is_symlink():
            path.unlink()
        below |= {parent for parent in path.parents if folder in parent.parents}
    remove_empty(sorted(below, key=lambda one: -len(one.parts)))


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those folders, in this order, that are empty."""
    for one in folders:
        if one.is_dir() and not one.is_symlink() and not any(one.iterdir()):
            one.rmdir()


def is_ours(folder: Path) -> bool:
    """Returns whether a path is a folder of this user's that nobody else can write to, and no link to one."""
    try:
        there = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(there.st_mode):
        return False
    return os.name == "nt" or (there.st_uid == os.getuid() and not there.st_mode & 0o022)
