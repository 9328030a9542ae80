"""A folder for what the processes of one user share on a machine, as locks."""

from __future__ import annotations

import getpass
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def user_folder() -> Path | None:
    """Returns a folder of this user in the temporary folder, for files that the user's processes share.

    Another user of the machine can neither write into it nor hold a lock in it.

    Returns:
      The folder; None where another user has put something in its place, or it can't be made.
    """
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()  # Windows: the folder is the user's own
    try:
        folder = Path(tempfile.gettempdir()) / f"runner-{user}"
        with suppress(FileExistsError):
            folder.mkdir(mode=stat.S_IRWXU)
        status = folder.lstat()
    except OSError:
        return None
    # A name in a shared folder is free to whoever comes first: it may be a link, or a folder of another user.
    if not stat.S_ISDIR(status.st_mode):
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & _OTHERS):
        return None
    return folder
