"""Checkpoints of a group of processes: the slices of a run's arrays that the devices of these processes need.

In the manifest each slice is an array of its own, `<path>@<number>`. The manifest's record says where in which array
each slice is, and which save of the run it belongs to. A slice that several groups need is in the folder of each.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.data.base import Array
from runner.engine.base import Engine, Shard
from runner.host.stores.urls import Place
from runner.processes.team import Team
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.groups import Group
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.saver import Take, take_state
from runner.training.checkpoint.storage import Content
from runner.training.checkpoint.typed import MisfitError, items, mapping, text, whole
from runner.training.recorder import MetricRecorder

# The key of the record in a manifest.
RECORD = "slices"

# The config groups that decide which slices a process needs.
_DECISIVE = ("mesh", "layout", "engine", "model", "optimizer")

Start = tuple[int, ...]


@dataclass(frozen=True)
class SlicedArray:
    """The slices of an array in a checkpoint, which is as many as its group needs.

    Attributes:
      shape: of the whole array.
      starts: index of the first element of each slice in the whole array; slice `i` is the array `<path>@<i>`.
    """

    shape: tuple[int, ...]
    starts: tuple[Start, ...]


@dataclass(frozen=True)
class Record:
    """What a group's manifest says about its slices.

    Attributes:
      save: random number of the save, which is the same in all groups.
      members: ranks of the group's processes.
      needs: a digest of the slices that each process of the run needs, by rank.
      arrays: by canonical path.
    """

    save: str
    members: tuple[int, ...]
    needs: tuple[str, ...]
    arrays: Mapping[str, SlicedArray]


def _name(path: str, number: int) -> str:
    """Returns the name of a slice in the manifest."""
    return f"{path}@{number}"


class _Division:
    """Which slices a group stores, and which of them this process writes.

    A slice is written by the first process of the group that has it. All processes make this object together.
    """

    def __init__(self, shards: Mapping[str, Sequence[Shard]], group: Group, team: Team) -> None:
        """Exchanges which process has which slices.

        Args:
          shards: all distinct shards of this process's devices, by path.
          group: of this process.
          team: the processes of the run.
        """
        self._paths = sorted(shards)
        # Without the paths, which all processes have: the message of a large model stays small.
        own = [sorted(list(shard.start) for shard in shards[path]) for path in self._paths]
        starts_by_rank = team.all_gather("the slices of the fast tier", own)
        shapes = {path: shards[path][0].whole for path in self._paths}
        self._needs = [_digest([list(shapes.items()), starts]) for starts in starts_by_rank]
        self._members = group.members
        self._arrays: dict[str, SlicedArray] = {}
        # Path -> start -> number of the slice, of those that this process writes.
        self._written: dict[str, dict[Start, int]] = {}
        for position, path in enumerate(self._paths):
            owners: dict[Start, int] = {}
            for rank in group.members:
                for start in starts_by_rank[rank][position]:
                    owners.setdefault(tuple(start), rank)
            starts = sorted(owners)
            self._arrays[path] = SlicedArray(shapes[path], tuple(starts))
            numbers = {start: number for number, start in enumerate(starts) if owners[start] == team.index}
            self._written[path] = numbers

    def own(self, shards: Mapping[str, Sequence[Shard]]) -> dict[str, list[Shard]]:
        """Returns the slices that this process writes by their names, each as a whole array."""
        slices: dict[str, list[Shard]] = {}
        for path in self._paths:
            for shard in shards[path]:
                number = self._written[path].get(shard.start)
                if number is not None:
                    shape = tuple(shard.array.shape)
                    slices[_name(path, number)] = [Shard((0,) * len(shape), shard.array, shape)]
        return slices

    def record(self, save: str) -> dict[str, Any]:
        """Returns the record of a save as plain values."""
        arrays: dict[str, Any] = {}
        for path, array in self._arrays.items():
            arrays[path] = {"shape": list(array.shape), "starts": [list(start) for start in array.starts]}
        return {"save": save, "members": list(self._members), "needs": self._needs, "arrays": arrays}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def take_slices(engine: Engine, about: Mapping[str, Any], group: Group, team: Team) -> Take:
    """Returns a function that copies the metrics and the slices that this process writes into a checkpoint's content.

    All processes of the run call that function at the same steps.

    Args:
      engine: built.
      about: see `runner.training.checkpoint.saver.take_state`.
      group: of this process.
      team: the processes of the run.
    """
    division: _Division | None = None

    def shards() -> dict[str, list[Shard]]:
        nonlocal division
        held = engine.shards(replicas=True)
        if division is None:
            division = _Division(held, group, team)
        return division.own(held)

    take_own = take_state(engine, about, shards)
    saves = 0

    def take(step: int, recorder: MetricRecorder) -> Content:
        nonlocal saves
        content = take_own(step, recorder)
        saves += 1
        save = team.broadcast(f"save {saves} of the fast tier", lambda: secrets.token_hex(8))
        assert division is not None
        return replace(content, about={**content.about, RECORD: division.record(save)})

    return take


class SlicedCheckpoint(Checkpoint):
    """A verified checkpoint of a group: the whole arrays by canonical path, of which it has some slices.

    Attributes:
      record: what its manifest says about the slices.
    """

    def __init__(self, folder: Place, *, trusted: bool = False) -> None:
        """Opens and verifies a checkpoint; see `Checkpoint`.

        Raises:
          DamagedError: a file is missing or corrupted, or it is no checkpoint of a group.
        """
        super().__init__(folder, trusted=trusted)
        self.record = parse(folder, self.about)
        names: list[str] = []
        for path, array in self.record.arrays.items():
            for number, start in enumerate(array.starts):
                name = _name(path, number)
                names.append(name)
                if name not in self._arrays or not _is_inside(start, super().shape(name), array.shape):
                    raise DamagedError(f"{folder} is invalid: {RECORD} does not agree with {name}")
        if len(names) != len(self._arrays):
            raise DamagedError(f"{folder} is invalid: {RECORD} does not name all arrays")

    def __iter__(self) -> Iterator[str]:
        return iter(self.record.arrays)

    def __len__(self) -> int:
        return len(self.record.arrays)

    def __contains__(self, path: object) -> bool:
        return path in self.record.arrays

    def shape(self, path: str) -> tuple[int, ...]:
        """Returns the shape of a whole array."""
        return self.record.arrays[path].shape

    def dtype(self, path: str) -> str:
        """Returns NumPy's name of an array's dtype."""
        return super().dtype(_name(path, 0))

    def __getitem__(self, path: str) -> Array:
        """Returns a whole array.

        Raises:
          DamagedError: a slice is only in another group's checkpoint.
        """
        return self.part(path, (slice(None),) * len(self.shape(path)))

    def part(self, path: str, index: tuple[slice, ...]) -> Array:
        """Returns a region of an array; see `Checkpoint.part`.

        Raises:
          DamagedError: a part of the region is only in another group's checkpoint, or the file has changed.
        """
        array = self.record.arrays[path]
        # Per dim the start and stop of the region, in the whole array.
        region = [dim_slice.indices(size)[:2] for dim_slice, size in zip(index, array.shape, strict=True)]
        values: Array = np.empty([max(stop - start, 0) for start, stop in region], self.dtype(path))
        read = 0
        for number, slice_start in enumerate(array.starts):
            name = _name(path, number)
            in_slice: list[slice] = []
            in_region: list[slice] = []
            for begin, size, (start, stop) in zip(slice_start, super().shape(name), region, strict=True):
                # The overlap of this slice with the region.
                low = max(begin, start)
                high = min(begin + size, stop)
                if low >= high:
                    break
                in_slice.append(slice(low - begin, high - begin))
                in_region.append(slice(low - start, high - start))
            else:
                overlap = super().part(name, tuple(in_slice))
                values[tuple(in_region)] = overlap
                read += overlap.size
        if read != values.size:
            raise DamagedError(
                f"{self.folder} lacks a part of {path} that this process needs; "
                "set trainer.checkpoint.fast_folder=null to continue from trainer.checkpoint.folder"
            )
        return values


def _is_inside(start: Start, size: Sequence[int], shape: Sequence[int]) -> bool:
    if not len(start) == len(size) == len(shape):
        return False
    return all(begin + count <= most for begin, count, most in zip(start, size, shape, strict=True))


def parse(folder: Place, about: Mapping[str, Any]) -> Record:
    """Returns the record in a manifest.

    Args:
      folder: of the checkpoint, for the message.
      about: the manifest's content.

    Raises:
      DamagedError: the manifest has no valid record.
    """
    try:
        content = mapping(about.get(RECORD), RECORD, ("save", "members", "needs", "arrays"), exactly=True)
        arrays: dict[str, SlicedArray] = {}
        for path, value in mapping(content["arrays"], f"{RECORD}.arrays").items():
            entry = mapping(value, f"{RECORD}.arrays.{path}", ("shape", "starts"), exactly=True)
            starts = [_numbers(start, path) for start in items(entry["starts"], path)]
            if not starts:
                raise MisfitError(f"{RECORD}.arrays.{path} has no slice")
            arrays[path] = SlicedArray(_numbers(entry["shape"], path), tuple(starts))
        needs = [text(digest, f"{RECORD}.needs") for digest in items(content["needs"], f"{RECORD}.needs")]
        members = _numbers(content["members"], f"{RECORD}.members")
        if not members or max(members) >= len(needs):
            raise MisfitError(f"{RECORD}.members must be ranks")
        return Record(text(content["save"], f"{RECORD}.save"), members, tuple(needs), arrays)
    except MisfitError as error:
        raise DamagedError(f"{folder} is invalid: {error}") from error


def _numbers(value: object, where: str) -> tuple[int, ...]:
    return tuple(whole(number, f"{RECORD}.{where}") for number in items(value, f"{RECORD}.{where}"))


def misfit(record: Record, about: Mapping[str, Any], content: Mapping[str, Any], group: Group) -> str:
    """Returns why a group can't continue from a checkpoint in its folder; empty: it can.

    Args:
      record: of the checkpoint.
      about: its manifest's content.
      content: the config of this start, resolved.
      group: of this process.
    """
    if len(record.needs) != group.count:
        return f"was saved by {len(record.needs)} processes, and not by {group.count}"
    for key in _DECISIVE:
        if about["config"].get(key) != content.get(key):
            return f"was saved with another {key}"
    stored = {record.needs[rank] for rank in record.members}
    for rank in group.members:
        if record.needs[rank] not in stored:
            return f"lacks the slices of process {rank}, which was on another machine"
    return ""
