import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.checkpoint.metric_history import MetricHistory, from_json, to_json
from runner.checkpoint.recorder import MetricRecorder
from runner.engine.base import StepMetrics
from runner.errors import EngineError
from runner.task.base import Evaluation

NAN, WEIGHT = float("nan"), 64.0


@dataclass
class Call:
    """A device call whose metrics are known."""

    loss: Sequence[float]
    reads: list[int] = field(default_factory=list)
    weight: Sequence[float] | float = WEIGHT

    @property
    def steps(self) -> int:
        return len(self.loss)

    def read(self) -> StepMetrics:
        self.reads.append(1)
        loss, weight = np.asarray(self.loss, np.float64), np.broadcast_to(np.asarray(self.weight), len(self.loss))
        return StepMetrics({"loss": loss * weight, "accuracy": loss * weight / 100}, weight)


class Log:
    """Keeps the points."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, points: Mapping[str, float]) -> None:
        self.points.append((step, dict(points)))

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(step, points["train/loss"]) for step, points in self.points]


def make(log: Log, window: int = 10, *, checks_loss: bool = True) -> MetricRecorder:
    return MetricRecorder(
        log, window, lambda step: step / 1000, metrics=["accuracy"], batch_size=64, checks_loss=checks_loss
    )


def feed(recorder: MetricRecorder, losses: Sequence[float], sizes: Sequence[int]) -> None:
    step = 0
    for size in sizes:
        recorder.add(step, Call(losses[step : step + size]))
        step += size


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[int], int]:
    sizes = draw(st.lists(st.integers(1, 17), min_size=1, max_size=12))
    return sum(sizes), sizes, draw(st.integers(1, 20))


@given(splits())
def test_points_do_not_depend_on_how_steps_are_divided_into_calls(case: tuple[int, list[int], int]) -> None:
    total, sizes, window = case
    losses = [float(step) for step in range(total)]
    one, many = Log(), Log()
    for log, cut in ((one, [1] * total), (many, sizes)):
        recorder = make(log, window)
        feed(recorder, losses, cut)
        recorder.flush()
    assert many.points == one.points
    ends = sorted({*range(window, total + 1, window), total})
    starts = [0, *ends[:-1]]
    means = [float(np.mean(losses[start:end])) for start, end in zip(starts, ends, strict=True)]
    # Sums of whole numbers below 2**53 are exact, so the means are equal to the last bit or two.
    assert one.losses == [(end, pytest.approx(mean, rel=1e-15)) for end, mean in zip(ends, means, strict=True)]


def test_a_point_has_loss_accuracy_and_the_learning_rate_of_its_last_step() -> None:
    log = Log()
    recorder = make(log, 2)
    feed(recorder, [1.0, 3.0], [2])
    recorder.drain()
    assert log.points == [
        (2, {"train/loss": 2.0, "train/accuracy": pytest.approx(0.02), "learning_rate": pytest.approx(0.001)})
    ]
    assert recorder.history.train == [(2, {"loss": 2.0, "accuracy": pytest.approx(0.02)})]


@pytest.mark.parametrize(("by_batch", "mean"), [(False, (64 * 1.0 + 16 * 6.0) / 80), (True, 3.5)])
def test_a_smaller_batch_counts_by_its_examples_or_as_one_batch(by_batch: bool, mean: float) -> None:
    log = Log()
    recorder = MetricRecorder(log, 3, lambda _: 0.1, batch_size=64, by_batch=by_batch)
    recorder.add(0, Call([1.0, 6.0, 9.0], weight=[64.0, 16.0, 0.0]))
    recorder.drain()
    assert recorder.epoch_means() == {"loss": pytest.approx(mean)}
    assert log.losses == [(3, pytest.approx(mean))]


def test_a_call_is_read_only_when_the_next_one_was_started() -> None:
    recorder = make(Log())
    first, second = Call([1.0]), Call([1.0])
    recorder.add(0, first)
    assert first.reads == []
    recorder.add(1, second)
    assert (len(first.reads), len(second.reads)) == (1, 0)
    recorder.drain()
    assert (len(first.reads), len(second.reads)) == (1, 1)


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_nan_or_inf_loss_raises_with_its_step(bad: float) -> None:
    recorder = make(Log())
    recorder.add(0, Call([1.0] * 5))
    recorder.add(5, Call([1.0, 1.0, bad, bad]))
    with pytest.raises(EngineError, match=rf"the loss is {bad} at step 8 and trainer.on_nan=stop"):
        recorder.drain()


def test_continue_logs_nan_and_inf_losses_and_continues() -> None:
    log = Log()
    recorder = make(log, 2, checks_loss=False)
    feed(recorder, [1.0, NAN, 3.0, 3.0], [4])
    recorder.drain()
    assert [step for step, _ in log.losses] == [2, 4]
    assert math.isnan(log.losses[0][1])
    assert log.losses[1][1] == 3.0


def copied(recorder: MetricRecorder) -> MetricHistory:
    """Returns the history as a checkpoint stores it."""
    return from_json(json.loads(json.dumps(to_json(recorder.history))))


def test_epoch_means_are_over_the_steps_of_the_epoch_only() -> None:
    recorder = make(Log())
    assert all(math.isnan(mean) for mean in recorder.epoch_means().values())
    recorder.add(0, Call([1.0, 3.0, 5.0]))
    recorder.drain()
    assert recorder.epoch_means() == {"loss": 3.0, "accuracy": pytest.approx(0.03)}
    recorder.start_epoch()
    recorder.add(3, Call([10.0]))
    recorder.add(4, Call([20.0]))
    assert recorder.epoch_means()["loss"] == 10.0  # of the calls read so far
    recorder.drain()
    assert recorder.epoch_means()["loss"] == 15.0


def test_an_evaluation_is_logged_at_its_step_and_kept() -> None:
    log = Log()
    recorder = make(log)
    evaluation = Evaluation({"loss": 0.5, "top_5": 0.9}, 10, {}, np.zeros((10, 2), np.float32))
    recorder.add_evaluation(30, evaluation)
    assert log.points == [(30, {"eval/loss": 0.5, "eval/top_5": 0.9})]
    assert recorder.evaluations == [(30, evaluation)]
    recorder.add_evaluation(60, evaluation)
    assert [len(one.outputs) for _, one in recorder.evaluations] == [0, 10], "only the last keeps its outputs"


def filled() -> MetricRecorder:
    """Returns a history of 7 steps in windows of 2, with an evaluation and a rate."""
    recorder = make(Log(), 2)
    feed(recorder, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [7])
    recorder.drain()
    recorder.add_evaluation(4, Evaluation({"loss": 0.5, "accuracy": 0.25, "top_5": 1.0}, 9, {}, np.zeros(0)))
    recorder.add_rate(6, 2.0)
    return recorder


def test_a_history_keeps_every_bit_in_json() -> None:
    recorder = filled()
    recorder.history.train.append((8, {"loss": 0.1 + 0.2, "accuracy": NAN}))
    stored = to_json(recorder.history)
    np.testing.assert_equal(to_json(copied(recorder)), stored)
    assert stored["evaluations"] == [[4, 9, {"loss": 0.5, "accuracy": 0.25, "top_5": 1.0}]]


def test_the_mean_of_an_epoch_is_logged_once_and_again_after_a_kill() -> None:
    recorder = make(log := Log(), window=2)
    feed(recorder, [1.0, 3.0, 5.0], [3])
    recorder.drain()
    recorder.end_epoch(3)
    recorder.end_epoch(3)
    means = [points for _, points in log.points if "train/epoch_loss" in points]
    assert means == [{"train/epoch_loss": 3.0, "train/epoch_accuracy": 0.03}]
    history = copied(recorder)
    again = make(later := Log(), window=2)
    again.restore(3, history)
    again.end_epoch(3)
    assert sorted(later.points, key=str) == sorted(log.points, key=str), "each once"
