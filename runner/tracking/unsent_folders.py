"""Folders of unsent records.

In the project's outputs, else in the user's state folder, else in the temporary folder.

Each folder belongs to one user. Files that another user may have put there are not used.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.host.folders import is_ours

_UNSENT = "unsent"
_NOT_PRIVATE = "belongs to another user, or others can write to it"


def project_folder(root: Path) -> Path:
    """Returns the folder of a project's unsent records.

    Args:
      root: the project's folder.
    """
    return root / "outputs" / _UNSENT


def folders(root: Path) -> list[Path]:
    """Returns the folders to search for records, in the order of writing.

    Args:
      root: the project's folder.
    """
    candidates = [project_folder(root)]
    # A user may have no home.
    with contextlib.suppress(OSError, RuntimeError):
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        candidates.append(Path(state) / "runner" / _UNSENT)
    # There may be no temporary folder, or no name for this user id.
    with contextlib.suppress(OSError, KeyError, ImportError):
        candidates.append(Path(tempfile.gettempdir()) / f"runner-{getpass.getuser()}" / _UNSENT)
    return candidates


def make(folder: Path, root: Path) -> None:
    """Makes one of `folders`, private to this user.

    The folder above it is made too unless it is the project's.

    Raises:
      OSError: it can't be made, or belongs to another user.
    """
    if folder == project_folder(root):
        # Others may look into the project's outputs.
        folder.parent.mkdir(parents=True, exist_ok=True)
        private = [folder]
    else:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        private = [folder.parent, folder]
    for path in private:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        # Checked after it was made: it may have been there, or be a link.
        if not is_ours(path):
            raise PermissionError(f"{path} {_NOT_PRIVATE}")


def files(root: Path) -> list[Path]:
    """Returns every file of unsent records, oldest first.

    Those that another user may have written are left out.
    """
    dated: list[tuple[int, Path]] = []
    for folder in folders(root):
        if _is_private(folder, root):
            dated += _dated_files(folder)
    return [path for _, path in sorted(dated)]


def warnings(root: Path) -> list[str]:
    """Returns one line per ignored folder, whose files another user may have written."""
    lines = []
    for folder in folders(root):
        if _is_private(folder, root):
            continue
        count = len(list(_dated_files(folder)))
        if count:
            lines.append(f"{folder} {_NOT_PRIVATE}: ignoring {count} files of unsent records in it")
    return lines


def _is_private(folder: Path, root: Path) -> bool:
    return is_ours(folder) and (folder == project_folder(root) or is_ours(folder.parent))


def _dated_files(folder: Path) -> Iterator[tuple[int, Path]]:
    with contextlib.suppress(OSError):
        for path in folder.glob("*.jsonl"):
            yield path.lstat().st_mtime_ns, path
