"""The processes of a run that see the same folder: of a local disk, those of one machine."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from runner.errors import Interrupted
from runner.processes.team import ProcessError, Team

T = TypeVar("T")


class Group(Team):
    """The processes of a run that see one folder, as the team that keeps checkpoints there.

    All processes of the run call `broadcast` and `all_gather` in the same order, whatever their group, and each call
    waits for all of them. So the groups write the same checkpoint, and if one group fails, all fail.

    Attributes:
      index: rank of this process in its group; the first one decides for the group.
      count: number of processes of the whole run, because a group of one process waits for the other groups too.
      folder: the folder, as the group's first process names it.
      members: ranks in the run of this group's processes, in order.
      firsts: rank in the run of the first process of each group, in order.
    """

    def __init__(self, team: Team, folder: Path, members: Sequence[int], firsts: Sequence[int]) -> None:
        """Makes the group of this process; see the attributes.

        Args:
          team: the processes of the run.
          folder: see above.
          members: see above.
          firsts: see above.
        """
        self.index = members.index(team.index)
        self.count = team.count
        self.folder = folder
        self.members = tuple(members)
        self.firsts = tuple(firsts)
        self._team = team

    def broadcast(self, key: str, make: Callable[[], T], *, given_up: Callable[[], bool] | None = None) -> T:
        """Returns the value that the first process of this group computes; see `Team`.

        Raises:
          OSError: the first process of a group could not compute its own.
        """
        content: dict[str, Any] = {}
        if self.is_first:
            content = _outcome(make)
        contents = self._team.all_gather(self._shared(key), content, given_up=given_up)
        for rank, other in enumerate(contents):
            if "error" in other:
                raise OSError(other["errno"], f"{other['error']} (process {rank})")
        value: T = contents[self.members[0]]["made"]
        return value

    def all_gather(self, key: str, value: Any, *, given_up: Callable[[], bool] | None = None) -> list[Any]:
        """Returns the values of this group's processes, in order, when all processes of the run have sent theirs."""
        values = self._team.all_gather(self._shared(key), value, given_up=given_up)
        return [values[rank] for rank in self.members]

    def _shared(self, key: str) -> str:
        """Returns a key in which no group's own folder is named, so that all groups use the same."""
        return key.replace(str(self.folder), "the fast folder")


def _outcome(make: Callable[[], Any]) -> dict[str, Any]:
    """Returns a value, or the error that the processes of all groups raise."""
    try:
        return {"made": make()}
    except (ProcessError, Interrupted):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error)
        return {"error": reason, "errno": getattr(error, "errno", None) or 0}


def of_folder(key: str, folder: Path, team: Team) -> Group | None:
    """Returns the group of this process by who sees its folder; None: all processes see the same.

    Each process makes a token in its folder, and then looks for the tokens of all. All processes call this.

    Args:
      key: of the exchange, used once.
      folder: as this process names it; created if it is missing.
      team: the processes of the run.
    """
    if team.count == 1:
        return None
    # As long as no step is, so that no unfinished checkpoint has this name.
    number = team.broadcast(f"{key}: the number of the tokens", lambda: 10**17 + secrets.randbelow(10**17))
    own = _token(folder, number, team.index)
    # A process that can't write in its folder is in a group of its own, and its save reports the error.
    with suppress(OSError):
        own.mkdir(parents=True)
    folders = team.all_gather(f"{key}: the folders", str(folder))
    # Each is looked for by its name, because a network file system may list a folder as it was a minute ago.
    lowest = team.index
    for rank in range(team.index):
        # Not Path.is_dir, which raises if a folder above is not readable.
        if os.path.isdir(_token(folder, number, rank)):  # noqa: PTH112
            lowest = rank
            break
    sees = team.all_gather(f"{key}: the tokens", lowest)
    with suppress(OSError):
        own.rmdir()
    # No process continues before all tokens are gone: `storage.clean` would meet one that is removed at that moment.
    team.all_gather(f"{key}: no tokens", True)
    firsts: list[int] = []
    for rank in range(team.count):
        first = rank
        while sees[first] != first:
            first = sees[first]
        firsts.append(first)
    if not any(firsts):
        return None
    members = [rank for rank in range(team.count) if firsts[rank] == firsts[team.index]]
    return Group(team, Path(folders[members[0]]), members, sorted(set(firsts)))


def _token(folder: Path, number: int, rank: int) -> Path:
    # An empty folder that has the form of an unfinished checkpoint: if this process dies, `storage.clean` removes it.
    return folder / f".unfinished-{number}-{rank}"
