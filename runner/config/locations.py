"""Paths and URLs of files and folders in the config: which are valid."""

from __future__ import annotations

import os
from pathlib import Path

from runner.config import urls

# The longest file name, in bytes, of the usual file systems (ext4, XFS, APFS, NTFS).
_LONGEST_NAME = 255


def folder_problem(value: str) -> str | None:
    """Returns why a string can be neither a path nor the URL of a folder in an object store, or None."""
    if urls.is_in_memory(value):
        # A store of tests.
        return "is the memory of one process, which is lost when that ends"
    if urls.is_url(value):
        return urls.problem(value)
    return path_problem(value)


def path_problem(value: str) -> str | None:
    """Returns why a string can't be a path on any file system, or None."""
    if not value.strip():
        return "must be a path"
    if urls.is_url(value):
        return "must be a local path (only trainer.checkpoint.folder takes a URL)"
    if is_root(value):
        return "must not be the root of the file system"
    if "\0" in value:
        return "must be a path, which has no NUL byte"
    # File systems limit the bytes of a name, not its characters.
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in value.split("/")):
        return f"must be a path whose names have at most {_LONGEST_NAME} bytes"
    try:
        Path(value).expanduser()
    except RuntimeError:
        # `~name` is the home folder of a user whom this machine does not know.
        home = Path(value).parts[0]
        return f"there is no user {home[1:]!r}; use an absolute path, or ./{home} for a folder with that name"
    return None


def is_root(path: str) -> bool:
    """Returns whether a path is the root of the file system, as `/` and `/tmp/..` are."""
    return path.startswith("/") and not os.path.normpath(path).strip("/")
