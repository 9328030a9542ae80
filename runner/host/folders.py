"""Folders that a command writes into, and whose a folder is.

Only files of the runner are ever overwritten or removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from runner.errors import invalid, passing
from runner.host.lock import HeldError, lock_until_exit
from runner.host.outputs import unwritable

# A file in each folder that a command has claimed. It is locked as long as the command's process lives.
MARK = ".runner"
# Mode of folders whose content is trusted later: others may read it.
OWN_MODE = 0o755
_MARK_TEXT = "A run wrote the files in this folder; another run into this folder overwrites them.\n"


# The folders whose mark this process has locked, with the open file. A process may claim a folder twice, and a second
# lock of its own on the same file would fail. Process-wide, as the locks are.
_locked: dict[Path, int] = {}


def _forget_locks() -> None:
    """Closes a forked child's copies: the folder belongs to its parent, and is free when the parent ends."""
    for handle in _locked.values():
        os.close(handle)
    _locked.clear()


os.register_at_fork(after_in_child=_forget_locks)


def claim(key: str, path: Path | str, *, hold: bool = True) -> Path:
    """Creates a folder, or takes one that is empty or that an earlier command claimed, if no process writes into it.

    Returns its absolute path. `hold` keeps other processes out of it until this process ends; False for a folder that
    another process claims later. A ConfigError names the key.
    """
    folder = Path(path).absolute()
    check(key, folder)
    is_new = not (folder / MARK).is_file()
    try:
        for parent in reversed(folder.parents):
            # Whatever the umask is: records in a folder that others can write to are not trusted.
            if not parent.exists():
                parent.mkdir(OWN_MODE, exist_ok=True)
        folder.mkdir(exist_ok=True)
        if folder.resolve() not in _locked:
            _locked[folder.resolve()] = lock_until_exit(folder / MARK)
        if is_new:
            (folder / MARK).write_text(_MARK_TEXT)
    except HeldError as error:
        problem = "another process is writing into this folder"
        raise passing(key, folder, problem=problem, fix=f"set {key}={folder}-2") from error
    except OSError as error:
        raise unwritable(error, folder, key) from error
    if not hold:
        os.close(_locked.pop(folder.resolve()))
    return folder


def check(key: str, folder: Path) -> None:
    """Rejects, by a ConfigError, a folder that has files which no run wrote, is a file, or can't be read."""
    try:
        if folder.is_dir() and not (folder / MARK).is_file() and any(folder.iterdir()):
            problem = "contains files that no run wrote, and a run could overwrite them"
            raise invalid(key, folder, problem=problem, fix=f"set {key}={folder / 'run'}")
        if folder.exists() and not folder.is_dir():
            raise invalid(key, folder, problem="must be a folder, but is a file", fix=f"set {key} to another path")
    except OSError as error:
        raise unwritable(error, folder, key) from error


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes files of a folder by name, and then the folders inside it that are empty as a result.

    What does not exist, or is not a file, is ignored.
    """
    parents: set[Path] = set()
    for name in names:
        path = folder / name
        if path.is_file() or path.is_symlink():
            path.unlink()
        parents.update(parent for parent in path.parents if folder in parent.parents)
    # The innermost first: a folder is empty only after the folders in it are removed.
    remove_empty(sorted(parents, key=lambda parent: -len(parent.parts)))


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those of the folders, in this order, that are empty."""
    for folder in folders:
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def why_not_ours(folder: Path, fix: str = "chmod go-w") -> str | None:
    """Returns why code or a secret in a folder can't be trusted, as the rest of a sentence; None if it can.

    A link is never trusted, because whoever made it may lead it elsewhere. `fix` is the command that repairs a folder
    of this user to which others can write.
    """
    try:
        status = folder.lstat()
    except OSError as error:
        return f"can't be read ({error.strerror})"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if is_own(status):
        return None
    if status.st_uid != os.getuid():
        return "belongs to another user"
    return f"can be written by other users ({fix} {folder})"


def is_own(status: os.stat_result) -> bool:
    """Returns whether this user owns a file or folder, and nobody else can write to it."""
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
