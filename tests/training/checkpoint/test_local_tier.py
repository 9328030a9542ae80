"""The fast tier on local disks: a run continues only from a checkpoint that every group has, whole, of one save."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runner.config.schema import CheckpointConfig
from runner.data.base import Array
from runner.engine.base import Engine, Shard, VariableInfo, part_of
from runner.processes.team import ProcessError, Team
from runner.training.checkpoint import local_tier, manifest, slices, storage, tiers
from runner.training.checkpoint import saver as saver_module
from runner.training.checkpoint.files import DamagedError
from runner.training.checkpoint.reading import Checkpoint, read_manifest
from runner.training.checkpoint.resume import load
from runner.training.checkpoint.runs import SavedRun
from runner.training.checkpoint.saver import CheckpointSaver, take_state
from runner.training.checkpoint.slices import SlicedCheckpoint
from runner.training.checkpoint.storage import Content
from runner.training.recorder import MetricRecorder
from tests.training.checkpoint.thread_team import ThreadTeam, all_of, together

RUN = "r"
CONFIG: dict[str, Any] = {"trainer": {}, "mesh": {"axes": {"batch": 3}}, "layout": {"rules": ["fsdp"]}}
ABOUT = {"run": RUN, "config": CONFIG, "seed": 1, "versions": {"numpy": np.__version__}}
# Two of the three processes are on one machine.
MACHINES = ("a", "b", "a")
SHAPES = {"d/kernel": (6, 4), "d/bias": (4,), "step": ()}


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counts the checkpoints of a folder for each thread by itself, as the processes do."""
    own = threading.local()

    def name(folder: Path) -> str:
        if not hasattr(own, "counts"):
            own.counts = defaultdict(itertools.count)
        return f"checkpoint {next(own.counts[folder])} in {folder}"

    monkeypatch.setattr(storage, "_name", name)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def value(path: str, step: int) -> Array:
    """Returns an array of the run after a step."""
    shape = SHAPES[path]
    size = int(np.prod(shape))
    return np.arange(size, dtype=np.float64).reshape(shape) + 1000 * step + len(path)


class OnDevice:
    """An array of a device, which the next step overwrites."""

    def __init__(self, engine: SplitEngine, path: str) -> None:
        self._engine, self._path = engine, path
        part = self.__array__()
        self.shape, self.dtype, self.nbytes = part.shape, part.dtype, part.nbytes

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        del dtype, copy
        return self._engine.part(self._path)


class SplitEngine:
    """One process's part of an engine whose kernel is sharded by rows, or replicated."""

    def __init__(self, index: int, *, sharded: bool = True, count: int = 3) -> None:
        self.index = index
        self.step = 0
        self.rows = slice(0, 6)
        if sharded:
            size = 6 // count
            self.rows = slice(size * index, size * (index + 1))
        self._sharded = sharded
        self.loaded: dict[str, Array] = {}
        self.trainable = ["d/kernel", "d/bias"]

    def variables(self) -> dict[str, VariableInfo]:
        return {path: VariableInfo(shape, "float64", (None,) * len(shape), 8) for path, shape in SHAPES.items()}

    def _index(self, path: str) -> tuple[slice, ...]:
        shape = SHAPES[path]
        if path == "d/kernel":
            return (self.rows, slice(0, 4))
        return tuple(slice(0, size) for size in shape)

    def part(self, path: str) -> Array:
        return np.array(value(path, self.step)[self._index(path)])

    def shards(self, *, replicas: bool = False) -> dict[str, list[Shard]]:
        found: dict[str, list[Shard]] = {}
        for path, shape in SHAPES.items():
            index = self._index(path)
            start = tuple(part.start for part in index)
            is_first = self.index == 0 or (self._sharded and path == "d/kernel")
            found[path] = []
            if replicas or is_first:
                found[path] = [Shard(start, cast(Any, OnDevice(self, path)), shape)]
        return found

    def load_state(self, state: Mapping[str, Array]) -> None:
        self.loaded = {path: part_of(state, path, self._index(path)) for path in SHAPES}

    def has(self, step: int) -> bool:
        return all(np.array_equal(self.loaded[path], value(path, step)[self._index(path)]) for path in SHAPES)


class Machines:
    """The folders of a run whose processes are on several machines."""

    def __init__(self, root: Path, machines: tuple[str, ...] = MACHINES, *, sharded: bool = True) -> None:
        self.root, self.machines, self.sharded = root, machines, sharded
        self.durable = root / "durable" / RUN
        self.run = SavedRun(self.durable, {"run": RUN})
        self.said: list[str] = []
        self.warned: list[str] = []

    @property
    def count(self) -> int:
        return len(self.machines)

    def options(self, index: int) -> CheckpointConfig:
        folder = self.root / self.machines[index]
        return CheckpointConfig(every_minutes=None, best=None, fast_folder=str(folder), fast_every_minutes=1e-9)

    def fast(self, machine: str) -> Path:
        return self.root / machine / RUN

    def engine(self, team: ThreadTeam) -> SplitEngine:
        return SplitEngine(team.index, sharded=self.sharded, count=self.count)

    def steps(self) -> dict[str, list[int]]:
        return {machine: storage.steps(self.fast(machine)) for machine in sorted(set(self.machines))}

    def saver(self, team: ThreadTeam, engine: SplitEngine, start: int = 0) -> tiers.TieredSaver:
        held = cast(Engine, engine)
        options = self.options(team.index)
        durable = CheckpointSaver(options, self.durable, take_state(held, ABOUT), pytest.fail, start, team=team)
        saver = tiers.with_fast_tier(options, self.run, durable, held, ABOUT, self.warned.append, start, team)
        assert isinstance(saver, tiers.TieredSaver)
        return saver

    def train(self, team: ThreadTeam, steps: list[int], durable: tuple[int, ...] = (), start: int = 0) -> SplitEngine:
        """Saves at some steps, in the run's own folder at the ones that are named, and dies."""
        engine = self.engine(team)
        saver = self.saver(team, engine, start)
        self.save_at(saver, engine, steps, durable)
        saver.close()
        return engine

    def save_at(
        self, saver: tiers.TieredSaver, engine: SplitEngine, steps: list[int], durable: tuple[int, ...] = ()
    ) -> None:
        recorder = MetricRecorder(lambda *_: None, 1, lambda _: 0.1)
        for step in steps:
            engine.step = step
            if step in durable:
                saver.save(step, recorder)
            else:
                saver.save_if_due(step, recorder)

    def newest(self, content: Mapping[str, Any] = CONFIG) -> list[int | None]:
        """Resumes and loads; returns the step of each process, None for the run's own folder."""
        self.said.clear()

        def resume(team: ThreadTeam) -> int | None:
            steps = storage.steps(self.durable)
            checkpoint = Checkpoint(storage.place(self.durable, steps[-1])) if steps else None
            options = self.options(team.index)
            fast = tiers.newer(options, content, self.run, checkpoint, team, self.said.append)
            if fast is None:
                return None
            engine = self.engine(team)
            load(cast(Engine, engine), fast)
            assert engine.has(fast.step)
            return fast.step

        return all_of(self.count, resume)


@pytest.fixture(params=[True, False], ids=["sharded", "replicated"])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Machines:
    return Machines(tmp_path, sharded=request.param)


def saved(three: Machines, steps: list[int], durable: tuple[int, ...] = ()) -> None:
    all_of(three.count, lambda team: three.train(team, steps, durable))


def test_each_machine_keeps_what_its_own_processes_need(three: Machines) -> None:
    saved(three, [4, 5, 6])
    assert three.steps() == {"a": [6], "b": [6]}
    assert storage.steps(three.durable) == []
    parts = {machine: SlicedCheckpoint(storage.place(three.fast(machine), 6)) for machine in "ab"}
    assert parts["a"].record.members == (0, 2)
    assert parts["b"].record.members == (1,)
    rows = {machine: [start[0] for start in part.record.arrays["d/kernel"].starts] for machine, part in parts.items()}
    files = {machine: sorted(read_manifest(part.folder).files) for machine, part in parts.items()}
    if three.sharded:
        assert rows == {"a": [0, 4], "b": [2]}
        assert files["a"] == ["arrays-00000.safetensors", "arrays-00001.safetensors", "history.safetensors"]
        with pytest.raises(DamagedError, match="lacks a part of d/kernel"):
            parts["b"]["d/kernel"]
        np.testing.assert_array_equal(
            parts["b"].part("d/kernel", (slice(3, 4), slice(1, 3))), value("d/kernel", 6)[3:4, 1:3]
        )
    else:
        assert rows == {"a": [0], "b": [0]}
        # Process 2, on the machine of process 0, has nothing to write.
        assert files["a"] == ["arrays-00000.safetensors", "history.safetensors"]
        np.testing.assert_array_equal(parts["b"]["d/kernel"], value("d/kernel", 6))
    assert files["b"] == ["arrays-00000.safetensors", "history.safetensors"]
    for part in parts.values():
        np.testing.assert_array_equal(part["d/bias"], value("d/bias", 6))
        assert len(part) == 3
        assert "d/kernel@0" not in part


def test_a_run_goes_on_from_the_newest_step(three: Machines) -> None:
    saved(three, [4, 5, 6], durable=(4,))
    assert three.newest() == [6, 6, 6]
    assert three.said == []


def test_training_waits_for_a_state_that_is_too_large_to_be_copied(
    three: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver_module, "MOST_COPIED", 0)
    write = storage.write
    passing: list[bool] = []

    def noted(folder: Path, content: Content, team: Team) -> Any:
        passing.append(content.passing)
        return write(folder, content, team)

    monkeypatch.setattr(storage, "write", noted)
    saved(three, [4, 5, 6])
    # In a replicated run, process 2 has nothing to write.
    assert passing.count(True) == (9 if three.sharded else 6)
    assert three.newest() == [6, 6, 6]


def test_a_run_that_went_on_keeps_what_it_continues_from_until_the_next_save(three: Machines) -> None:
    saved(three, [4, 5, 6], durable=(4,))

    def go_on(team: ThreadTeam) -> list[int]:
        engine = three.engine(team)
        saver = three.saver(team, engine, start=6)
        team.all_gather("begun", True)
        before = storage.steps(three.fast(three.machines[team.index]))
        three.save_at(saver, engine, [7])
        saver.close()
        return before

    assert all_of(3, go_on) == [[6]] * 3
    assert three.steps() == {"a": [7], "b": [7]}


def test_a_lost_disk_means_the_runs_own_checkpoint(three: Machines) -> None:
    saved(three, [4, 5, 6], durable=(4,))
    shutil.rmtree(three.fast("b"))
    assert three.newest() == [None] * 3
    assert three.said == [
        "warning: the machines' fast folders have no checkpoint in common (process 0: step 6; process 1: none); "
        "continuing from step 4"
    ]


def test_a_damaged_file_means_the_runs_own_checkpoint(three: Machines) -> None:
    saved(three, [4, 5, 6], durable=(4,))
    file = storage.place(three.fast("b"), 6) / "arrays-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert three.newest() == [None] * 3
    assert three.said == [f"warning: {file} is corrupted (SHA-256 mismatch); it is skipped"]


@pytest.mark.parametrize("machine", ["a", "b"])
def test_if_the_processes_die_between_two_manifests_the_step_before_is_taken(three: Machines, machine: str) -> None:
    saved(three, [4, 5, 6], durable=(4,))
    move = storage._move_into_place
    is_done = threading.Event()

    def dies(unfinished: Path, folder: Path, step: int) -> Path:
        if folder == three.fast(machine):
            assert is_done.wait(30)
            raise ProcessError("it was killed")
        moved = move(unfinished, folder, step)
        is_done.set()
        return moved

    def die(team: ThreadTeam) -> None:
        engine = three.engine(team)
        saver = three.saver(team, engine, start=6)
        three.save_at(saver, engine, [7])
        # The first process of that machine is gone, and the writers of the others are told so.
        if three.machines[team.index] == machine:
            saver._fast._wait()
            raise ProcessError("it was killed")
        saver.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_move_into_place", dies)
        together(3, die)
    other = "b" if machine == "a" else "a"
    assert three.steps() == {machine: [6], other: [6, 7]}
    assert three.newest() == [6, 6, 6]
    assert three.said == []


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_full_disk_of_one_machine_leaves_the_checkpoint_before_on_all(
    at: str, three: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, discard = storage._move_into_place, storage._discard

    def full_at_end(unfinished: Path, folder: Path, step: int) -> Path:
        if step == 5 and folder == three.fast("b"):
            raise OSError(28, "No space left on device")
        return move(unfinished, folder, step)

    def full_at_begin(path: Path) -> None:
        if path.parent == three.fast("b") and path.name.startswith(".unfinished-000000005"):
            raise OSError(28, "No space left on device")
        discard(path)

    if at == "end":
        monkeypatch.setattr(storage, "_move_into_place", full_at_end)
    else:
        monkeypatch.setattr(storage, "_discard", full_at_begin)
    seen: list[dict[str, list[int]]] = []

    def train(team: ThreadTeam) -> None:
        engine = three.engine(team)
        saver = three.saver(team, engine)
        three.save_at(saver, engine, [4, 5])
        saver._fast._wait()
        team.all_gather("all wait", True)
        if team.is_first:
            seen.append(three.steps())
        team.all_gather("all have looked", True)
        three.save_at(saver, engine, [6])
        saver.close()

    all_of(3, train)
    assert seen[0]["b"] == [4]
    assert 4 in seen[0]["a"]
    assert three.steps() == {"a": [6], "b": [6]}, "what one machine alone had of step 5 is removed"
    assert not list(three.root.rglob(".unfinished*"))
    assert len(three.warned) == 3
    assert all("step 5" in line and "No space left on device (process 1)" in line for line in three.warned)
    assert three.newest() == [6, 6, 6]


def test_a_machine_keeps_no_more_saves_while_the_disk_of_another_stays_full(
    three: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = storage._move_into_place

    def full(unfinished: Path, folder: Path, step: int) -> Path:
        if 5 <= step < 9 and folder == three.fast("b"):
            raise OSError(28, "No space left on device")
        return move(unfinished, folder, step)

    monkeypatch.setattr(storage, "_move_into_place", full)
    seen: list[dict[str, list[int]]] = []

    def train(team: ThreadTeam) -> None:
        engine = three.engine(team)
        saver = three.saver(team, engine)
        for step in range(4, 10):
            three.save_at(saver, engine, [step])
            saver._fast._wait()
            team.all_gather(f"all wait {step}", True)
            if team.is_first:
                seen.append(three.steps())
            team.all_gather(f"all have looked {step}", True)
        saver.close()

    all_of(3, train)
    assert [steps["b"] for steps in seen] == [[4]] * 5 + [[9]]
    assert [steps["a"] for steps in seen] == [[4], [4, 5], [4, 6], [4, 7], [4, 8], [9]]
    assert three.newest() == [9, 9, 9]


def test_two_saves_of_one_step_do_not_mix(three: Machines) -> None:
    saved(three, [6])
    shutil.copytree(three.fast("b"), three.root / "before")
    saved(three, [6])
    shutil.rmtree(three.fast("b"))
    (three.root / "before").rename(three.fast("b"))
    assert three.newest() == [None] * 3
    assert three.said[0].endswith("(process 0: step 6); training from the start")


def test_another_mesh_or_layout_means_the_runs_own_checkpoint(three: Machines) -> None:
    saved(three, [4, 5], durable=(4,))
    for key in ("mesh", "layout", "engine", "model", "optimizer"):
        assert three.newest({**CONFIG, key: {"other": 1}}) == [None] * 3
        assert f"step 5 was saved with another {key}" in three.said[0]
    assert three.newest({**CONFIG, "trainer": {"epochs": 7}}) == [5, 5, 5]


def test_another_number_of_processes_means_the_runs_own_checkpoint(three: Machines) -> None:
    saved(three, [4, 5], durable=(4,))
    three.machines = ("a", "b")
    assert three.newest() == [None] * 2
    assert "was saved by 3 processes, and not by 2" in three.said[0]


def test_processes_may_exchange_their_machines_if_their_slices_are_there(three: Machines) -> None:
    saved(three, [4, 5], durable=(4,))
    three.machines = ("b", "a", "a")
    if three.sharded:
        assert three.newest() == [None] * 3
        assert "step 5 lacks the slices of process 0, which was on another machine" in three.said[0]
    else:
        assert three.newest() == [5, 5, 5]


def test_a_checkpoint_of_one_shared_folder_is_not_taken_by_machines_apart_nor_the_reverse(three: Machines) -> None:
    apart = three.machines
    saved(three, [4, 5], durable=(4,))
    three.machines = ("a", "a", "a")
    assert three.newest() == [None] * 3
    assert three.said[0].endswith("has only what one machine of several needed; it is skipped")
    saved(three, [4, 6], durable=(4,))
    assert three.newest() == [6, 6, 6], "one folder that all see, as before"
    three.machines = apart
    assert three.newest() == [None] * 3
    assert "process 0: step 6 was saved when all processes shared a folder" in three.said[0]


def test_a_nan_goes_back_to_the_last_step_that_all_have(three: Machines) -> None:
    saved(three, [4], durable=(4,))

    def go_back(team: ThreadTeam) -> list[int]:
        engine = three.engine(team)
        saver = three.saver(team, engine, start=4)
        three.save_at(saver, engine, [6, 7])
        found = [saver.go_back(9)]
        assert isinstance(found[0], SlicedCheckpoint)
        load(cast(Engine, engine), found[0])
        assert engine.has(7)
        three.save_at(saver, engine, [8])
        # The only one of the fast tier is too late.
        found.append(saver.go_back(8))
        saver.close()
        return [checkpoint.step for checkpoint in found if checkpoint is not None]

    assert all_of(3, go_back) == [[7, 4]] * 3
    assert three.steps() == {"a": [], "b": []}


def test_at_the_end_all_folders_are_empty(three: Machines) -> None:
    def train(team: ThreadTeam) -> None:
        engine = three.engine(team)
        saver = three.saver(team, engine)
        three.save_at(saver, engine, [4, 5])
        assert saver.save_last(5, MetricRecorder(lambda *_: None, 1, lambda _: 0.1)) is None
        saver.close()

    all_of(3, train)
    assert three.steps() == {"a": [], "b": []}
    assert storage.steps(three.durable) == [5]
    whole = Checkpoint(storage.place(three.durable, 5))
    np.testing.assert_array_equal(whole["d/kernel"], value("d/kernel", 5))
    assert slices.RECORD not in whole.about


Change = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("save"),
        lambda record: record["arrays"].pop("d/bias"),
        lambda record: record["arrays"]["d/kernel"]["starts"].append([0, 0]),
        lambda record: record["arrays"]["d/kernel"].update(shape=[1, 1]),
        lambda record: record["arrays"]["d/kernel"].update(starts=[]),
        lambda record: record["arrays"]["d/kernel"].update(starts=[[0]]),
        lambda record: record.update(members=[3]),
        lambda record: record.update(members="0"),
    ],
)
def test_a_record_that_does_not_agree_with_the_arrays_is_rejected(change: Change, tmp_path: Path) -> None:
    three = Machines(tmp_path)
    saved(three, [5])
    place = storage.place(three.fast("b"), 5)
    content = json.loads((place / manifest.NAME).read_text())
    content.pop("sha256")
    change(content["slices"])
    (place / manifest.NAME).write_bytes(manifest.sealed(content))
    with pytest.raises(DamagedError, match="is invalid"):
        SlicedCheckpoint(place)
    assert three.newest() == [None] * 3


def test_a_group_has_its_own_saver_only_if_the_folders_differ(three: Machines) -> None:
    def kind(team: ThreadTeam) -> type:
        saver = three.saver(team, three.engine(team))
        saver.close()
        return type(saver._fast)

    assert all_of(3, kind) == [local_tier.LocalSaver] * 3
    three.machines = ("a", "a", "a")
    assert all_of(3, kind) == [CheckpointSaver] * 3
