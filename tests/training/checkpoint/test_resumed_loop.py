"""A run that is stopped anywhere and goes on ends as the run that was never stopped: weights, points, pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.checkpoint import stopping, storage
from runner.checkpoint.metric_history import NewPoints
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.resume import load
from runner.checkpoint.saver import Saver, take_state
from runner.config.schema import CheckpointConfig, LayoutConfig, MeshConfig, PlateauConfig, RunConfig, ScheduleConfig
from runner.engine.common import Engine
from runner.errors import ConfigError, EngineError, Interrupted
from runner.host.signals import StopRequest
from runner.tracking import Tracker
from runner.train import loop
from runner.train.display import Display
from runner.train.profile import Profiler
from tests.configs import with_keys
from tests.numpy_engine import KnownTask
from tests.training.checkpoint.numpy_engine import ABOUT, NumpyEngine, dataset


class Killed(BaseException):
    """Ends the process as SIGKILL does: nothing of ours runs after it."""


@dataclass
class Store(Tracker):
    """Keeps points as a tracking store does, and dies at a given point."""

    points: list[tuple[str, int, float]] = field(default_factory=list)
    dies_at: int | None = None

    def begin(self, found: Checkpoint | None) -> None:
        """A run that left no checkpoint can't go on: the next one is a new one, with no points."""
        if found is None:
            self.points.clear()

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        if self.dies_at is not None and len(self.points) >= self.dies_at:
            raise Killed
        self.points += [(key, step, value) for key, value in values.items() if not key.startswith("throughput")]

    def logged(self) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for key, step, value in self.points:
            found.setdefault(key, {})[step] = value
        return found


class StopAfter(StopRequest):
    """A signal that comes after so many device calls and evaluated batches."""

    def __init__(self, calls: int | None) -> None:
        super().__init__()
        self._left = calls

    def raise_if_requested(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Interrupted(15)


BY_EPOCHS: dict[str, Any] = {"trainer.epochs": 3}
# Evaluations every five steps, of epochs of eight; each without an improvement changes the rate of the steps after it.
BY_STEPS: dict[str, Any] = {
    "trainer.epochs": None,
    "trainer.steps": 24,
    "trainer.evaluate_every_steps": 5,
    "optimizer.schedule": ScheduleConfig(
        "exponential", decay_steps=6, plateau=PlateauConfig("eval/accuracy", factor=0.7, patience=1)
    ),
}
LENGTHS = {"epochs": BY_EPOCHS, "steps": BY_STEPS}
EVALUATED = {"epochs": {8, 16, 24}, "steps": {5, 10, 15, 20, 24}}


def make_config(
    every: int | None, length: Mapping[str, Any] = MappingProxyType(BY_EPOCHS), keep: int = 2, window: int = 4
) -> RunConfig:
    config = RunConfig(mesh=MeshConfig(axes={"batch": 1}))
    return with_keys(
        config,
        {
            "layout": LayoutConfig(inputs={"image": ["batch", None, None, None]}),
            "dataset.batch_size": 8,
            "dataset.eval_batch_size": 32,
            **length,
            "trainer.log_every_steps": window,
            "trainer.steps_per_call": 3,
            "trainer.checkpoint": CheckpointConfig(
                every_steps=every, every_minutes=None, keep=keep, best="eval/accuracy"
            ),
        },
    )


def train(
    config: RunConfig, store: Store, folder: Path | None, start: Checkpoint | None = None, calls: int | None = None
) -> tuple[NumpyEngine, loop.Result]:
    engine = NumpyEngine(16, 3)
    held = cast(Engine, engine)
    saver: Saver = Saver()
    if start is not None:
        load(held, start)
    if folder is not None:
        take = take_state(held, ABOUT)
        goal = stopping.objective(config.trainer.checkpoint.best, KnownTask().directions)
        saver = Saver(config.trainer.checkpoint, folder, take, pytest.fail, start.step if start else 0, goal)
    points = NewPoints(store, continues=start is not None)
    profiler = Profiler(config.trainer.profile, nothing, Path())
    hooks = loop.LoopHooks(points.log, nothing, Display(), StopAfter(calls).raise_if_requested, saver, profiler)
    return engine, loop.train(config, held, dataset(config), hooks, start)


def nothing(*_: object) -> Any:
    """Stands for what these runs never ask for."""


def last(folder: Path) -> Checkpoint | None:
    there = storage.steps(folder)
    return Checkpoint(storage.place(folder, there[-1])) if there else None


Whole = tuple[NumpyEngine, loop.Result, Store]


@pytest.fixture(scope="module")
def wholes() -> dict[str, Whole]:
    """Returns runs that were never interrupted."""
    runs: dict[str, Whole] = {}
    for name, length in LENGTHS.items():
        store = Store()
        engine, result = train(make_config(None, length), store, None)
        runs[name] = engine, result, store
    return runs


@pytest.fixture
def whole(wholes: dict[str, Whole]) -> Whole:
    return wholes["epochs"]


def test_the_run_by_steps_reduces_its_rate_inside_epochs(wholes: dict[str, Whole]) -> None:
    # Otherwise the tests below would say nothing of a schedule that is wrong after a resume.
    _, result, store = wholes["steps"]
    plateau = BY_STEPS["optimizer.schedule"].plateau
    goal = stopping.objective(plateau.metric, KnownTask().directions)
    assert goal is not None
    reduced = stopping.reductions(plateau, goal, result.history.measured())
    assert len({step % 8 for step, _ in reduced} - {0}) >= 2
    assert set(store.logged()["eval/loss"]) == EVALUATED["steps"]


def same(engine: NumpyEngine, result: loop.Result, whole: tuple[NumpyEngine, loop.Result, Store]) -> None:
    np.testing.assert_array_equal(engine.weight, whole[0].weight)
    np.testing.assert_array_equal(engine.momentum, whole[0].momentum)
    assert result.history.train == whole[1].history.train
    assert [(at, one.loss) for at, one in result.history.evaluations] == [
        (at, one.loss) for at, one in whole[1].history.evaluations
    ]
    assert result.evaluation.totals == whole[1].evaluation.totals
    np.testing.assert_array_equal(result.evaluation.outputs, whole[1].evaluation.outputs)
    assert (result.steps, result.epoch_means) == (whole[1].steps, whole[1].epoch_means)


@pytest.mark.nightly
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    deaths=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    every=st.integers(1, 11),
    kind=st.sampled_from(list(LENGTHS)),
)
def test_a_run_killed_anywhere_ends_the_same_with_every_point_once(
    wholes: dict[str, Whole], tmp_path_factory: pytest.TempPathFactory, deaths: list[int], every: int, kind: str
) -> None:
    whole = wholes[kind]
    folder, config, store = tmp_path_factory.mktemp("killed"), make_config(every, LENGTHS[kind]), Store()
    for death in deaths:
        store.dies_at = death
        store.begin(last(folder))
        try:
            train(config, store, folder, last(folder))
        except Killed:
            sent = len(store.points) - len(store.points) % 4  # by a writer that had not sent all
            store.points = store.points[:sent] if last(folder) else []  # without a checkpoint it is a new run
        else:
            break
    store.dies_at = None
    found = last(folder)
    if found is None or found.step < whole[1].steps:
        store.begin(found)
        engine, result = train(config, store, folder, found)
        same(engine, result, whole)
    assert sorted(store.points) == sorted(whole[2].points)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.integers(0, 20), every=st.one_of(st.none(), st.integers(1, 7)), kind=st.sampled_from(list(LENGTHS)))
def test_a_run_ended_by_a_signal_loses_no_step(
    wholes: dict[str, Whole], tmp_path_factory: pytest.TempPathFactory, calls: int, every: int | None, kind: str
) -> None:
    whole = wholes[kind]
    folder, config, store = tmp_path_factory.mktemp("ended"), make_config(every, LENGTHS[kind]), Store()
    try:
        train(config, store, folder, calls=calls)
    except Interrupted:
        before = last(folder)
        if before is not None:
            assert before.step == max(step for _, step, _ in store.points), "saved where it stopped"
        if before is None:
            store.points.clear()  # the next run is a new one
        engine, result = train(config, store, folder, before)
        same(engine, result, whole)
        assert set(whole[2].points) <= set(store.points), "besides, the mean of what it had done where it stopped"
        keys = [(key, step) for key, step, _ in store.points]
        assert len(keys) == len(set(keys))
        assert {step for key, step in keys if key == "eval/loss"} == EVALUATED[kind]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the checkpoints of a run by steps, one of each step."""
    folder = tmp_path_factory.mktemp("saved")
    train(make_config(1, BY_STEPS, keep=99), Store(), folder)
    return folder


@pytest.mark.parametrize("at", range(1, 21))
def test_a_run_by_steps_that_is_resumed_at_any_step_ends_the_same(
    wholes: dict[str, Whole], saved: Path, at: int
) -> None:
    config = make_config(None, BY_STEPS)
    engine, result = train(config, Store(), None, Checkpoint(storage.place(saved, at)))
    same(engine, result, wholes["steps"])


def test_a_resume_with_more_steps_continues_with_the_same_examples(tmp_path: Path) -> None:
    constant = {key: value for key, value in BY_STEPS.items() if key.startswith("trainer")}
    train(make_config(None, constant | {"trainer.steps": 13}), Store(), tmp_path / "again")
    store = Store()
    engine, result = train(make_config(None, constant), store, tmp_path / "again", last(tmp_path / "again"))
    whole_store = Store()
    whole_engine, whole_result = train(make_config(None, constant), whole_store, tmp_path / "whole")
    np.testing.assert_array_equal(engine.weight, whole_engine.weight)
    np.testing.assert_array_equal(engine.momentum, whole_engine.momentum)
    evaluated = [step for step, _ in result.history.evaluations]
    assert evaluated == [5, 10, 13, 15, 20, 24], "the end of the first run is one more"
    assert [step for step, _ in whole_result.history.evaluations] == [5, 10, 15, 20, 24]
    again, once = store.logged()["train/epoch_loss"], whole_store.logged()["train/epoch_loss"]
    assert {step: again[step] for step in once} == once


@pytest.mark.parametrize(("repeats", "logged"), [(False, []), (True, [("train/loss", 7, 0.5)])])
def test_a_run_that_goes_back_logs_repeated_steps_with_their_new_values(
    repeats: bool, logged: list[tuple[str, int, float]]
) -> None:
    store = Store([("train/loss", 7, 0.25), ("train/loss", 8, 0.125)])
    points = NewPoints(store, continues=True, repeats_steps=repeats)
    points.log(7, {"train/loss": 0.5})
    points.log(8, {"train/loss": 0.125})
    assert store.points[2:] == logged


def test_calls_end_where_a_checkpoint_is_due_and_only_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    config = make_config(5, keep=2)
    engine, result = train(config, Store(), tmp_path)
    losses = {at: one.metrics["accuracy"] for at, one in result.history.evaluations}
    best = storage.read_best(tmp_path)
    assert best is not None
    assert best.value == max(losses.values())
    assert set(storage.steps(tmp_path)) == {20, 24, best.step}
    np.testing.assert_array_equal(Checkpoint(storage.place(tmp_path, 24))["d/kernel"], engine.weight)


def test_every_multiple_is_saved_with_the_metrics_of_that_step(tmp_path: Path) -> None:
    train(make_config(5, keep=99), Store(), tmp_path)
    assert {5, 10, 15, 20, 24} <= set(storage.steps(tmp_path))
    found = Checkpoint(storage.place(tmp_path, 10)).history()
    assert [step for step, _ in found.train] == [4, 8]
    assert len(found.open_window) == 2  # steps 9 and 10 wait for their window's end
    assert [step for step, _ in found.evaluations] == [8]


def test_a_nan_or_inf_loss_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = NumpyEngine._step
    monkeypatch.setattr(NumpyEngine, "_step", lambda *given: (float("nan"), step(*given)[1]))
    with pytest.raises(EngineError, match="the loss is nan at step 1"):
        train(make_config(3), Store(), tmp_path)
    assert storage.steps(tmp_path) == []


def test_another_model_is_rejected_by_its_first_variable(tmp_path: Path) -> None:
    train(make_config(10), Store(), tmp_path)
    found = last(tmp_path)
    assert found is not None
    with pytest.raises(
        ConfigError, match=r"with another model, d/kernel has shape \[16, 3\] there and \[16, 4\] here"
    ):
        load(cast(Engine, NumpyEngine(16, 4)), found)
    found._arrays = {"d/kernel": found._arrays["d/kernel"]}
    with pytest.raises(ConfigError, match="with another optimizer, the checkpoint lacks optimizer/momentum/d/kernel"):
        load(cast(Engine, NumpyEngine(16, 3)), found)
