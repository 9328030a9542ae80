"""Where unsent records may lie: in the project's outputs, else in a folder of the user's, else in the system's.

Each place belongs to one user. What another user may have put there is left alone.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.host.key import is_own

_UNSENT = "unsent"
_NOT_OURS = "belongs to another user, or others can write to it"


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
    """Makes one of `folders`, in which nobody else may look or put something; in the project others may look.

    Raises:
      OSError: it can't be made, or is another user's.
    """
    if place == folder(root):
        place.parent.mkdir(parents=True, exist_ok=True)
        own = [place]
    else:
        place.parent.parent.mkdir(parents=True, exist_ok=True)
        own = [place.parent, place]
    for path in own:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if not _is_ours(path):
            raise PermissionError(f"{path} {_NOT_OURS}")


def files(root: Path) -> list[Path]:
    """Returns every file of unsent records, oldest first; none of a folder that another user could have filled."""
    found: list[tuple[int, Path]] = []
    for place in folders(root):
        if _is_private(place, root):
            found += _listed(place)
    return [path for _, path in sorted(found)]


def left(root: Path) -> list[str]:
    """Returns a line for each folder whose files are left alone, because another user could have filled it."""
    lines = []
    for place in folders(root):
        count = 0 if _is_private(place, root) else sum(1 for _ in _listed(place))
        if count:
            lines.append(f"{place} {_NOT_OURS}: {count} files of unsent records in it are left where they are")
    return lines


def _is_private(place: Path, root: Path) -> bool:
    return _is_ours(place) and (place == folder(root) or _is_ours(place.parent))


def _listed(place: Path) -> Iterator[tuple[int, Path]]:
    with contextlib.suppress(OSError):
        for path in place.glob("*.jsonl"):
            yield path.lstat().st_mtime_ns, path


def _is_ours(place: Path) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and is_own(found)
