"""Two tiers of checkpoints: a killed run continues from the newest whole one that all processes can read."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runner.config.schema import CheckpointConfig
from runner.engine.base import Engine
from runner.processes.team import ALONE, Team
from runner.training import loop, stopping
from runner.training.checkpoint import storage, tiers
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.recovery import NewPoints
from runner.training.checkpoint.resume import Previous, load
from runner.training.checkpoint.runs import SavedRun
from runner.training.checkpoint.saver import CheckpointSaver, take_state
from runner.training.display import Display
from runner.training.profile import Profiler
from tests import forks
from tests.numpy_engine import KnownTask
from tests.training.checkpoint import test_resumed_loop as resumed
from tests.training.checkpoint.numpy_engine import ABOUT, NumpyEngine, dataset
from tests.training.checkpoint.test_resumed_loop import Killed, StopAfter, Store, make_config

RUN = ABOUT["run"]


class Both:
    """The folders of a run's two tiers, with every step in the fast one and every eighth in the other."""

    def __init__(self, root: Path) -> None:
        self.durable = root / "durable" / RUN
        self.fast = root / "fast" / RUN
        self.run = SavedRun(self.durable, {"run": RUN})
        self.options = CheckpointConfig(
            every_steps=8, every_minutes=None, best=None, fast_folder=str(root / "fast"), fast_every_minutes=1e-9
        )
        self.said: list[str] = []

    def previous(self, team: Team = ALONE) -> Previous | None:
        """Returns from where `resume=<run>` continues."""
        checkpoint = resumed.last(self.durable)
        fast = tiers.newer(self.options, {}, self.run, checkpoint, team, self.said.append)
        if fast is not None:
            return Previous(self.run, fast, is_fast=True)
        return None if checkpoint is None else Previous(self.run, checkpoint)

    def newest(self, team: Team = ALONE) -> Checkpoint | None:
        previous = self.previous(team)
        return None if previous is None else previous.checkpoint

    def at(self, step: int) -> Previous:
        """Returns from where `resume=<run>@<step>` continues."""
        return Previous(self.run, Checkpoint(storage.place(self.durable, step)))

    def train(
        self, store: Store, calls: int | None = None, previous: Previous | None = None
    ) -> tuple[NumpyEngine, loop.Result]:
        config = make_config(8)
        config = replace(config, trainer=replace(config.trainer, steps_per_call=1, checkpoint=self.options))
        previous = previous or self.previous()
        start = None if previous is None else previous.checkpoint
        history = previous.history if previous is not None and previous.is_fast else None
        engine = NumpyEngine(16, 3)
        held = cast(Engine, engine)
        if start is not None:
            load(held, start)
        take = take_state(held, ABOUT)
        first = start.step if start else 0
        goal = stopping.objective(None, KnownTask().directions)
        durable = CheckpointSaver(self.options, self.durable, take, pytest.fail, first, goal, history=history)
        saver = tiers.with_fast_tier(self.options, self.run, durable, held, ABOUT, pytest.fail, first, ALONE)
        points = NewPoints(store, start)
        profiler = Profiler(config.trainer.profile, resumed.nothing, Path())
        hooks = loop.LoopHooks(
            points.log, points.forget, resumed.nothing, Display(), StopAfter(calls), saver, profiler
        )
        return engine, loop.train(config, held, dataset(config), hooks, start)


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


def killed(both: Both, points: int) -> Store:
    """Trains until so many points were logged, and dies there."""
    store = Store(dies_at=points)
    with pytest.raises(Killed):
        both.train(store)
    store.dies_at = None
    return store


def test_a_killed_run_goes_on_from_the_fast_tier_and_ends_as_one_that_was_not(both: Both, tmp_path: Path) -> None:
    whole_store = Store()
    whole, expected = Both(tmp_path / "whole").train(whole_store)
    store = killed(both, 14)
    [fast] = storage.steps(both.fast)
    durable = storage.steps(both.durable)[-1]
    assert fast > durable
    assert both.newest().step == fast  # type: ignore[union-attr]
    engine, result = both.train(store)
    np.testing.assert_array_equal(engine.weight, whole.weight)
    np.testing.assert_array_equal(engine.momentum, whole.momentum)
    assert result.steps == expected.steps
    assert sorted(store.points) == sorted(whole_store.points)
    # One history, as of a run that was resumed from its last checkpoint.
    assert set(storage.lineages(both.durable).values()) == {()}
    assert storage.steps(both.fast) == [], "the last state is in the run's own folder"


def test_a_run_killed_before_its_own_folder_has_a_checkpoint_goes_on_from_the_fast_tier(both: Both) -> None:
    killed(both, 1)
    [fast] = storage.steps(both.fast)
    assert storage.steps(both.durable) == []
    assert both.newest().step == fast  # type: ignore[union-attr]


def test_without_the_fast_tier_it_goes_on_from_its_own_folder(both: Both, tmp_path: Path) -> None:
    whole, _ = Both(tmp_path / "whole").train(Store())
    store = killed(both, 14)
    shutil.rmtree(both.fast)
    durable = storage.steps(both.durable)[-1]
    assert both.newest().step == durable  # type: ignore[union-attr]
    engine, _ = both.train(store)
    np.testing.assert_array_equal(engine.weight, whole.weight)


def test_a_damaged_fast_checkpoint_is_skipped_with_a_warning(both: Both) -> None:
    killed(both, 14)
    [step] = storage.steps(both.fast)
    [file] = sorted(storage.place(both.fast, step).glob("*.safetensors"))[:1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert both.newest().step == storage.steps(both.durable)[-1]  # type: ignore[union-attr]
    assert len(both.said) == 1
    assert both.said[0].endswith("; it is skipped")


def test_a_fast_checkpoint_of_another_run_or_of_a_left_history_is_not_taken(both: Both) -> None:
    killed(both, 14)
    durable = storage.steps(both.durable)[-1]
    other = SavedRun(both.durable, {"run": "another"})
    checkpoint = resumed.last(both.durable)
    assert checkpoint is not None
    assert tiers.newer(both.options, {}, other, checkpoint, ALONE, both.said.append) is None
    lineages = storage.lineages

    def left(folder: Path) -> dict[int, Any]:
        found = lineages(folder)
        return dict.fromkeys(found, ((1, 4),)) if folder == both.fast else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "lineages", left)
        assert both.newest().step == durable  # type: ignore[union-attr]


class Unreached(Team):
    """Two processes, of which the other one has no such disk."""

    def all_gather(self, key: str, value: Any, *, given_up: Any = None) -> list[Any]:
        del key, given_up
        return [value, False]


def test_a_fast_checkpoint_that_one_process_cannot_read_is_not_taken(both: Both) -> None:
    killed(both, 14)
    assert both.newest(Unreached()).step == storage.steps(both.durable)[-1]  # type: ignore[union-attr]
    assert "not every process can read" in both.said[0]


def test_the_fast_tier_belongs_to_the_history_of_the_runs_own_folder(both: Both) -> None:
    both.train(Store())
    first = storage.steps(both.durable)[0]
    history = ((1, first), (2, first))
    engine = cast(Engine, NumpyEngine(16, 3))
    take = take_state(engine, ABOUT)
    durable = CheckpointSaver(both.options, both.durable, take, pytest.fail, first, history=history)
    saver = tiers.with_fast_tier(both.options, both.run, durable, engine, ABOUT, pytest.fail, first, ALONE)
    assert isinstance(saver, tiers.TieredSaver)
    assert saver._fast.lineage == history
    saver.close()


def test_resuming_from_the_last_durable_step_leaves_the_fast_checkpoint(both: Both) -> None:
    killed(both, 14)
    [fast] = storage.steps(both.fast)
    last = storage.steps(both.durable)[-1]
    assert fast > last
    store = Store(dies_at=2)
    with pytest.raises(Killed):
        both.train(store, previous=both.at(last))
    # Those of the new steps, and not one that the run has left.
    assert max(storage.steps(both.fast), default=0) < fast
    assert both.newest().step < fast  # type: ignore[union-attr]


def test_a_run_that_went_back_goes_on_from_the_fast_tier_before_it_has_saved_durably(both: Both) -> None:
    both.train(Store())
    first, *_, last = storage.steps(both.durable)
    both.options = replace(both.options, every_steps=100)
    # In the last epoch, after the points of the epochs before were logged once more.
    store = Store(dies_at=22)
    with pytest.raises(Killed):
        both.train(store, previous=both.at(first))
    [fast] = storage.steps(both.fast)
    assert first < fast < last
    previous = both.previous()
    assert previous is not None
    assert previous.checkpoint.step == fast
    assert previous.history == ((1, first),)
    store.dies_at = None
    both.train(store)
    assert storage.lineages(both.durable)[last] == ((1, first),)


def test_a_fast_folder_that_is_lost_fails_no_run(both: Both) -> None:
    killed(both, 14)
    engine = cast(Engine, NumpyEngine(16, 3))
    take = take_state(engine, ABOUT)
    previous = both.previous()
    assert previous is not None
    start = previous.checkpoint.step
    durable = CheckpointSaver(both.options, both.durable, take, pytest.fail, start, history=previous.history)
    saver = tiers.with_fast_tier(both.options, both.run, durable, engine, ABOUT, pytest.fail, start, ALONE)
    assert isinstance(saver, tiers.TieredSaver)
    assert storage.steps(both.fast) == [start]
    shutil.rmtree(both.fast)
    saver._fast.discard()
    saver.close()


COMMAND = (
    *(
        "dataset=digits",
        # An epoch has 179 steps.
        "dataset.batch_size=8",
        "model=mlp",
        "model.hidden=[8]",
        "mesh=batch2",
        "trainer.epochs=2",
        "trainer.steps_per_call=1",
    ),
    *("trainer.progress=none", "tracking=none", "resume=auto", "name=exp1", "trainer.checkpoint.every_minutes=60"),
)
TIMEOUT_S = 240.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "cluster"), [("jax", ("cluster=local", "cluster.processes=2")), ("keras_dtensor", ())]
)
def test_a_killed_run_of_the_command_goes_on_from_the_fast_tier(
    engine: str, cluster: tuple[str, ...], tmp_path: Path
) -> None:
    library = forks.JAX if engine == "jax" else forks.TENSORFLOW
    fast = tmp_path / "fast"
    base = [sys.executable, "-m", "runner", *COMMAND, f"engine={engine}", *cluster]
    whole = [*base, f"trainer.checkpoint.folder={tmp_path}/whole", f"hydra.run.dir={tmp_path}/run-whole"]
    done = forks.run(whole, cwd=tmp_path, env=os.environ, timeout=TIMEOUT_S, library=library)
    assert done.returncode == 0, done.stdout + done.stderr
    own = tmp_path / "own"
    tiered = [
        *base,
        f"trainer.checkpoint.folder={own}",
        f"trainer.checkpoint.fast_folder={fast}",
        "trainer.checkpoint.fast_every_minutes=0.001",
    ]
    with forks.Popen(tiered, cwd=tmp_path, env=os.environ, library=library) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not (fast / "exp1").is_dir() or max(storage.steps(fast / "exp1"), default=0) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    saved = max(storage.steps(fast / "exp1"))
    done = forks.run(tiered, cwd=tmp_path, env=os.environ, timeout=TIMEOUT_S, library=library)
    assert done.returncode == 0, done.stdout + done.stderr
    resumed_at = re.search(r"Resuming run exp1 at step ([\d,]+)", done.stdout)
    assert resumed_at is not None, done.stdout
    # The launcher's processes live a moment longer than the launcher.
    assert saved <= int(resumed_at[1].replace(",", "")) < 179, (
        "it is of the fast tier: the own folder gets its first at the epoch's end"
    )
    assert storage.steps(fast / "exp1") == []
    last = storage.steps(own / "exp1")[-1]
    ended = Checkpoint(storage.place(own / "exp1", last))
    expected = Checkpoint(storage.place(tmp_path / "whole" / "exp1", last))
    assert set(ended) == set(expected)
    for path in expected:
        np.testing.assert_array_equal(ended[path], expected[path], err_msg=path)
    assert json.loads((own / "exp1" / "run.json").read_text())["finished"]
