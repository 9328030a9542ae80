"""Folders in the user's cache: digests and texts of data, copies of objects, compiled programs."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from runner.host.folders import OWN_MODE, why_not_ours


def cache_folder(name: str) -> Path:
    """Returns a folder in the user's cache, $XDG_CACHE_HOME or ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    return cache / "runner" / name


def private_cache(name: str) -> Path:
    """Makes a folder in the user's cache for what is executed: only this user can read, write and replace it.

    Raises:
      OSError: it can't be made, or there is no home directory; PermissionError: others can write to it.
    """
    try:
        folder = cache_folder(name)
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no home directory", "~/.cache") from error
    above = folder.parent.parent
    above.mkdir(OWN_MODE, parents=True, exist_ok=True)
    # Its owner, and whoever can write to it if it is not sticky as /tmp is, may put another folder in ours' place. The
    # group may write there: many systems give each user one of its own.
    status = above.stat()
    if status.st_uid not in (0, os.getuid()):
        raise PermissionError(errno.EPERM, "belongs to another user", str(above))
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, f"can be written by other users (chmod o-w {above})", str(above))
    for path, fix in ((folder.parent, "chmod go-w"), (folder, "rm -r")):
        with suppress(FileExistsError):
            path.mkdir(stat.S_IRWXU)
        # Not `chmod`: what others have put there, or swapped, would be executed afterwards.
        problem = why_not_ours(path, fix)
        if problem is not None:
            raise PermissionError(errno.EPERM, problem, str(path))
    return folder
