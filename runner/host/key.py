"""A key in a folder, with which this user's own files are told from others'."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

NAME = ".key"


def read(folder: Path) -> bytes:
    """Returns a folder's key; empty where there is none, or it can't be read."""
    try:
        return (folder / NAME).read_bytes()
    except OSError:
        return b""


def read_own(folder: Path) -> bytes:
    """Returns a folder's key if this user made it and nobody else can read or write it; else empty bytes."""
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        is_private = os.name == "nt" or not found.st_mode & 0o077
        return file.read() if is_own(found) and stat.S_ISREG(found.st_mode) and is_private else b""


def make(folder: Path) -> None:
    """Makes a folder's key, all at once: another process may be doing the same. Does nothing where it can't."""
    part = folder / f"{NAME}-{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_hex(32).encode())
            with contextlib.suppress(FileExistsError):
                os.link(part, folder / NAME)
        finally:
            part.unlink(missing_ok=True)


def is_own(found: os.stat_result) -> bool:
    """Returns whether this user owns a file, and no other one can write to it."""
    return os.name == "nt" or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
