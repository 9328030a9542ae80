"""Secret key in a folder, with which this user signs own files, so that other users' files are recognized."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from runner.host.folders import OWN_MODE, is_own

NAME = ".key"


def read_own(folder: Path) -> bytes:
    """Returns a folder's key if this user made it and nobody else can read or write it; else empty bytes."""
    # Another user may have put a link or a FIFO there: neither is followed or waited for.
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        is_private = os.name == "nt" or not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if is_own(status) and is_private and stat.S_ISREG(status.st_mode):
            return file.read()
        return b""


def make(folder: Path) -> None:
    """Creates a folder's key atomically; does nothing if that fails.

    Another process may do the same: the first one's key appears complete, and the other's is dropped.
    """
    part = folder / f"{NAME}-{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        folder.mkdir(OWN_MODE, parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_hex(32).encode())
            with contextlib.suppress(FileExistsError):
                os.link(part, folder / NAME)
        finally:
            part.unlink(missing_ok=True)
