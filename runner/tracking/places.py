"""Where unsent records may lie: in the project's outputs, else in a folder of the user's, else in the system's."""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_UNSENT = "unsent"


def folder(root: Path) -> Path:
    """Returns where a project's unsent records lie.

    Args:
      root: the project's folder.
    """
    return root / "outputs" / _UNSENT


def folders(root: Path) -> list[Path]:
    """Returns the folders that records are written to, the first that can be, and that are looked through.

    Args:
      root: the project's folder.
    """
    found = [folder(root)]
    with contextlib.suppress(OSError, RuntimeError):  # a user without a home
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        found.append(Path(state) / "runner" / _UNSENT)
    with contextlib.suppress(OSError, KeyError, ImportError):  # no temporary folder, no name
        found.append(Path(tempfile.gettempdir()) / f"runner-{getpass.getuser()}" / _UNSENT)
    return found


def make(place: Path, root: Path) -> None:
    """Makes one of `folders`; outside the project nobody else may look into it, or put something there.

    Raises:
      OSError: it can't be made, or is another user's.
    """
    if place == folder(root):
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.parent.mkdir(parents=True, exist_ok=True)
    for each in (place.parent, place):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=0o700)
        if not _is_ours(each):
            raise PermissionError(f"{each} is another user's, or others can write to it")


def files(root: Path) -> list[Path]:
    """Returns every file of unsent records, oldest first; none of a folder that another user could have filled."""
    found: list[tuple[int, Path]] = []
    for place in folders(root):
        if place == folder(root) or (_is_ours(place.parent) and _is_ours(place)):
            found += _listed(place)
    return [path for _, path in sorted(found)]


def _listed(place: Path) -> Iterator[tuple[int, Path]]:
    with contextlib.suppress(OSError):
        for path in place.glob("*.jsonl"):
            yield path.stat().st_mtime_ns, path


def _is_ours(place: Path) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return False
    return os.name == "nt" or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
