"""The loop, on an engine whose numbers are known, with real checkpoints."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runner.checkpoint import stopping, storage
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.saver import Saver, take_state
from runner.config.schema import (
    CheckpointConfig,
    DatasetConfig,
    EarlyStoppingConfig,
    PlateauConfig,
    ProfileConfig,
    RunConfig,
    TrainerConfig,
)
from runner.engine import lengths
from runner.engine.base import HostBatches, PlacedBatches
from runner.engine.common import Engine
from runner.errors import ConfigError, NotFiniteError
from runner.plan.checks.trainer import with_metrics
from runner.task.base import Evaluation
from runner.train import feed, loop, profile
from runner.train.display import Display
from tests.configs import with_keys
from tests.numpy_engine import KnownTask, NumpyEngine, splits
from tests.training.checkpoint.numpy_engine import ABOUT

EXAMPLES, BATCH = 40, 4
STEPS = EXAMPLES // BATCH
EARLY = EarlyStoppingConfig("eval/accuracy", patience=2)
BEST = CheckpointConfig(best="eval/accuracy")


def labels(first: int, last: int) -> dict[str, np.ndarray]:
    """Returns examples told apart by their labels."""
    return {"label": np.arange(first, last + 1, dtype=np.int32)}


def dataset(run: RunConfig, *, validates: bool = False) -> feed.Splits:
    """Returns examples 1 to 40 to train on and 101 to 107 to test on, and 201 to 204 to select by where asked for."""
    return splits(run, labels(1, EXAMPLES), labels(101, 107), labels(201, 204) if validates else None)


@dataclass
class Seen:
    """What a run logged and said."""

    points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    evaluations: int = 0

    def evaluated(self, _: int) -> None:
        self.evaluations += 1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.points.append((step, dict(values)))

    def notify(self, line: str, tags: Mapping[str, str]) -> None:
        self.said.append(line)
        self.tags |= tags

    def of(self, metric: str) -> list[tuple[int, float]]:
        return [(step, values[metric]) for step, values in self.points if metric in values]


def config(**trainer: Any) -> RunConfig:
    keys = {"seed": 3, "log_every_steps": 1, "steps_per_call": 3, "epochs": 2, "checkpoint": BEST} | trainer
    made = RunConfig(dataset=DatasetConfig(batch_size=BATCH), trainer=TrainerConfig(**keys))
    return with_keys(made, {"layout.inputs": {"label": [None]}})


def train(
    run: RunConfig, engine: NumpyEngine, folder: Path, start: Checkpoint | None = None, **given: Any
) -> tuple[loop.Result, Seen]:
    """Trains with checkpoints in `folder`, as `runner.train.run` does."""
    run = replace(run, trainer=with_metrics(run.trainer, KnownTask().directions))
    seen, held = Seen(), cast(Engine, engine)
    keep = run.trainer.checkpoint
    saver: Saver = Saver()
    if keep.enabled:
        take = take_state(held, ABOUT)
        goal = stopping.objective(keep.best, KnownTask().directions)
        saver = Saver(keep, folder, take, seen.said.append, start.step if start else 0, goal)
    profiler = profile.Profiler(run.trainer.profile, engine.trace, folder)
    hooks = loop.LoopHooks(seen.log, seen.notify, Display(), lambda: None, saver, profiler, evaluated=seen.evaluated)
    hooks = replace(hooks, callbacks=given.get("callbacks", hooks.callbacks))
    return loop.train(run, held, dataset(run, validates=given.get("validates", False)), hooks, start), seen


def test_a_nan_loss_of_the_first_step_suggests_no_learning_rate(tmp_path: Path) -> None:
    with pytest.raises(
        NotFiniteError, match=r"at step 1, before the first update, so no learning rate helps: "
    ) as told:
        train(config(), NumpyEngine(w=float("inf")), tmp_path)
    assert "optimizer.learning_rate" not in str(told.value)
    assert "JAX_DEBUG_NANS" in str(told.value)


@pytest.mark.parametrize("saves", [True, False])
def test_early_stopping_ends_the_run_and_leaves_the_best_weights(tmp_path: Path, saves: bool) -> None:
    engine = NumpyEngine(accuracies=[0.5, 0.7, 0.6, 0.65])
    weights = []
    evaluate = engine.evaluate
    engine.evaluate = lambda batches, **kept: weights.append(engine.w) or evaluate(batches, **kept)  # type: ignore[method-assign]
    run = config(epochs=9, early_stopping=EARLY, checkpoint=CheckpointConfig(enabled=saves, best="eval/accuracy"))
    result, seen = train(run, engine, tmp_path)
    assert result.steps == 4 * STEPS
    assert result.ended.startswith("early stopping: eval/accuracy was best at step 20 (0.7000)")
    assert [step for step, _ in seen.of("eval/accuracy")] == [10, 20, 30, 40], "the best one is not logged again"
    assert result.taken == (2 * STEPS if saves else 4 * STEPS)
    assert engine.w == weights[1 if saves else 3]
    assert result.evaluation.loss == engine.w
    if saves:
        assert storage.steps(tmp_path)[-1] == 4 * STEPS, "the last step is saved as it was left"
        assert float(Checkpoint(storage.place(tmp_path, 4 * STEPS))["d1/w"]) == weights[3]


def by_steps(steps: int, every: int | None, **trainer: Any) -> RunConfig:
    return config(epochs=None, steps=steps, evaluate_every_steps=every, **trainer)


def without_speed(seen: Seen) -> list[tuple[int, dict[str, float]]]:
    return [point for point in seen.points if not any(name.startswith("throughput") for name in point[1])]


@pytest.mark.parametrize("every", [STEPS, None])
def test_a_run_by_steps_is_that_by_epochs_with_evaluations_at_the_same_steps(
    tmp_path: Path, every: int | None
) -> None:
    epochs, steps = NumpyEngine(), NumpyEngine()
    expected, logged = train(config(epochs=3), epochs, tmp_path / "a")
    result, seen = train(by_steps(3 * STEPS, every), steps, tmp_path / "b")
    assert (steps.w, steps.seen, steps.evaluated) == (epochs.w, epochs.seen, epochs.evaluated)
    assert without_speed(seen) == without_speed(logged)
    assert (result.taken, result.epoch_means) == (expected.taken, expected.epoch_means)
    assert (expected.ended, result.ended) == ("trained for 3 epochs", "trained for 30 steps")
    assert storage.steps(tmp_path / "b") == storage.steps(tmp_path / "a")


@pytest.mark.parametrize(("every", "ends"), [(4, [4, 8, 12, 16, 20, 24, 25]), (13, [13, 25]), (99, [25])])
def test_evaluations_inside_and_across_epochs_do_not_change_what_is_trained(
    tmp_path: Path, every: int, ends: list[int]
) -> None:
    plain, engine = NumpyEngine(), NumpyEngine()
    train(config(epochs=3), plain, tmp_path / "a")
    result, seen = train(by_steps(25, every), engine, tmp_path / "b")
    assert engine.seen == plain.seen[:25]
    assert [step for step, _ in seen.of("eval/loss")] == ends
    assert [outputs for _, outputs in engine.evaluated] == [False] * (len(ends) - 1) + [True]
    losses = dict(seen.of("train/loss"))
    for start, end in zip([0, *ends], ends, strict=False):
        mean = np.mean([losses[step] for step in range(start + 1, end + 1)])
        assert dict(seen.of("train/epoch_loss"))[end] == pytest.approx(mean), "of the steps since the last one"
    assert result.steps == 25
    calls = [(first, first + steps) for first, steps, _ in engine.calls]
    for boundary in (*ends, STEPS, 2 * STEPS):
        assert not any(first < boundary < last for first, last in calls), "no call passes an evaluation or an epoch"


def test_a_plateau_inside_an_epoch_reduces_the_rate_from_the_next_step_on(tmp_path: Path) -> None:
    run = with_keys(
        by_steps(20, 4), {"optimizer.schedule.plateau": PlateauConfig("eval/accuracy", factor=0.5, patience=1)}
    )
    engine = NumpyEngine(accuracies=[0.5, 0.4, 0.6, 0.6, 0.7])
    train(run, engine, tmp_path)
    factors = {first + step: factor for first, steps, factor in engine.calls for step in range(steps)}
    assert [factors[step] for step in range(20)] == [1.0] * 8 + [0.5] * 8 + [0.25] * 4


def test_a_run_that_was_shortened_evaluates_where_it_is(tmp_path: Path) -> None:
    keep = CheckpointConfig(every_steps=7, best="eval/accuracy", keep=9)
    train(by_steps(20, 10, checkpoint=keep), NumpyEngine(), tmp_path)
    engine = NumpyEngine()
    checkpoint = Checkpoint(storage.place(tmp_path, 7))
    engine.load_state(checkpoint)
    result, seen = train(by_steps(5, 10, checkpoint=keep), engine, tmp_path, checkpoint)
    assert (result.steps, engine.calls) == (7, [])
    assert [step for step, _ in seen.of("eval/loss")] == [7]
    assert result.evaluation.loss == engine.w


class Watched(NumpyEngine):
    """Waits in each evaluation for batches of an epoch that has not begun."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.placed, self.early = 0, []
        self._more = threading.Condition()

    def place(self, batches: HostBatches) -> PlacedBatches:
        with self._more:
            self.placed += batches.steps
            self._more.notify()
        return super().place(batches)

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        with self._more:
            self.early.append(self._more.wait_for(lambda: self.placed > len(self.seen), timeout=1))
        return super().evaluate(batches, keep_outputs=keep_outputs)


def test_the_next_epoch_is_prefetched_during_the_evaluation(tmp_path: Path) -> None:
    watched, plain = Watched(), NumpyEngine()
    train(config(epochs=3), watched, tmp_path / "a")
    train(config(epochs=3), plain, tmp_path / "b")
    assert watched.early == [True, True, False], "there is none after the last"
    assert watched.seen == plain.seen


def test_a_limit_shortens_epochs_and_is_no_error_for_a_small_split(tmp_path: Path) -> None:
    engine = NumpyEngine()
    result, _ = train(config(limit_train_batches=3, limit_eval_batches=1), engine, tmp_path / "a")
    assert result.steps == 6
    assert train(config(limit_train_batches=300), NumpyEngine(), tmp_path / "b")[0].steps == 2 * STEPS
    with pytest.raises(ConfigError, match=r"trainer\.steps_per_epoch=300:"):
        lengths.run_length(config(steps_per_epoch=300), EXAMPLES, 0)


def test_overfitting_sees_the_same_batches_in_every_epoch_and_is_evaluated_on_them(tmp_path: Path) -> None:
    engine = NumpyEngine()
    result, _ = train(config(epochs=3, overfit_batches=2), engine, tmp_path)
    assert engine.seen[:2] == engine.seen[2:4] == engine.seen[4:6]
    assert len({label for step in engine.seen for label in step}) == 2 * BATCH == result.evaluation.examples
    assert result.evaluation.metrics["accuracy"] == 1.0, "labels of the training split, all below w"


@pytest.mark.parametrize(("start", "steps"), [(0, 1), (4, 5), (9, 2), (18, 2)])
def test_exactly_the_named_steps_are_traced(tmp_path: Path, start: int, steps: int) -> None:
    engine = NumpyEngine()
    train(config(profile=ProfileConfig(start, steps)), engine, tmp_path)
    assert engine.traced == [(tmp_path / "profile", list(range(start, start + steps)))]


def test_an_evaluation_is_the_mean_over_examples_or_over_batches(tmp_path: Path) -> None:
    def accuracy(mean: str) -> float:
        run = with_keys(config(epochs=1, eval_mean=mean), {"dataset.eval_batch_size": 5})
        engine = NumpyEngine(w=103.5 - 205)  # what a step adds on average is 20.5: ten of them end at 103.5
        return train(run, engine, tmp_path / mean)[0].evaluation.metrics["accuracy"]

    # Of 101 to 107, cut into five and two, the first three are below.
    assert accuracy("examples") == pytest.approx(3 / 7)
    assert accuracy("batches") == pytest.approx((3 / 5 + 0 / 2) / 2)


TEST, VALIDATION = tuple(range(101, 108)), tuple(range(201, 205))


def test_a_validation_split_selects_and_the_test_split_is_evaluated_once_at_the_end(tmp_path: Path) -> None:
    engine = NumpyEngine(accuracies=[0.5, 0.7, 0.6, 0.65, 0.25])
    result, seen = train(config(epochs=9, early_stopping=EARLY), engine, tmp_path, validates=True)
    assert engine.evaluated == [*[(VALIDATION, False)] * 4, (TEST, True)], "and nothing twice"
    assert (result.taken, result.evaluation.metrics["accuracy"]) == (2 * STEPS, 0.7)
    assert engine.w == float(Checkpoint(storage.place(tmp_path, 2 * STEPS))["d1/w"]), "with the weights that are taken"
    assert result.test is not None
    assert result.reported is result.test
    assert seen.of("test/accuracy") == [(4 * STEPS, 0.25)]
    assert [value for _, value in seen.of("eval/accuracy")] == [0.5, 0.7, 0.6, 0.65]
    assert seen.said[-1] == f"test loss {engine.w:.4f}, accuracy 0.2500 (7)"


def test_without_a_validation_split_the_test_split_selects_and_only_the_last_evaluation_keeps_outputs(
    tmp_path: Path,
) -> None:
    engine = NumpyEngine()
    result, seen = train(config(epochs=3), engine, tmp_path)
    assert engine.evaluated == [(TEST, False), (TEST, False), (TEST, True)]
    assert result.test is None
    assert result.reported is result.evaluation
    assert result.evaluation.outputs.tolist() == list(TEST)
    assert seen.of("test/accuracy") == []


@pytest.mark.parametrize("validates", [False, True])
def test_a_run_killed_after_its_last_evaluation_evaluates_again_for_its_report(
    tmp_path: Path, validates: bool
) -> None:
    run = config(checkpoint=CheckpointConfig(every_steps=5, best=None))
    train(run, NumpyEngine(), tmp_path, validates=validates)
    checkpoint = Checkpoint(storage.place(tmp_path, 2 * STEPS))
    engine = NumpyEngine()
    engine.load_state(checkpoint)
    result, _ = train(run, engine, tmp_path, checkpoint, validates=validates)
    assert engine.evaluated == [(TEST, True)]
    assert len(result.reported.outputs) == len(TEST)
