"""Folders that a command writes into: only its own files are ever written over, and only its own are removed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.errors import ConfigError, refuse

MARK = ".runner"  # lies in each folder that a command has claimed
_RUN = "run: "
_MARKED = "A run wrote what lies beside this file; another run into this folder writes over it.\n"


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
        if self.fresh:
            remove_files(self.folder, [*names, MARK])
        remove_empty(self.made)


def claim(key: str, path: Path | str) -> Claim:
    """Makes a folder, or takes one that is empty or that an earlier command claimed.

    Args:
      key: that names the folder, for the refusal.
      path: the folder.

    Raises:
      ConfigError: it holds something else, or can't be made.
    """
    folder = Path(path).absolute()
    check(key, folder)
    made = tuple(one for one in (folder, *folder.parents) if not one.exists())
    fresh = not (folder / MARK).is_file()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            (folder / MARK).write_text(_MARKED)
    except OSError as error:
        remove_empty(made)
        raise _cannot(key, folder, error) from error
    return Claim(folder, made, fresh)


def note_run(folder: Path, run: str) -> None:
    """Notes in the mark of a claimed folder which run wrote it.

    Raises:
      OSError: the disk is full, or can't be written.
    """
    (folder / MARK).write_text(f"{_MARKED}{_RUN}{run}\n")


def noted_run(folder: Path) -> str | None:
    """Returns the run that a folder's mark names; None where it names none."""
    try:
        lines = (folder / MARK).read_text().splitlines()
    except (OSError, ValueError):
        return None
    return next((line.removeprefix(_RUN) for line in lines if line.startswith(_RUN)), None)


def check(key: str, folder: Path) -> None:
    """Refuses a folder that a command must not write into; see `claim`, which makes it."""
    try:
        if folder.is_dir() and not (folder / MARK).is_file() and any(folder.iterdir()):
            raise refuse(
                key,
                folder,
                allowed="a folder that is not there, is empty or that an earlier run made, so that no file of "
                "yours is written over",
                mend=f"set {key}={folder / 'run'}",
            )
        if folder.exists() and not folder.is_dir():
            raise refuse(key, folder, allowed="a folder, and this is a file", mend=f"set {key} to another path")
    except OSError as error:
        raise _cannot(key, folder, error) from error


def _cannot(key: str, folder: Path, error: OSError) -> ConfigError:
    return refuse(key, folder, allowed=f"a folder that can be written ({error.strerror})", mend=f"set {key} to one")


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
