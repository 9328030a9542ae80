from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.errors import EngineError, NotFiniteError
from runner.engine.base import EvalMetrics, StepMetrics
from runner.training.history import History, Restore

NAN = float("nan")


@dataclass
class Call:
    """A device call whose metrics are known."""

    loss: Sequence[float]
    reads: list[int] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.loss)

    def read(self) -> StepMetrics:
        self.reads.append(1)
        loss = np.asarray(self.loss, np.float64)
        return StepMetrics(loss, loss / 100)


class Log:
    """Keeps the points."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, points: Mapping[str, float]) -> None:
        self.points.append((step, dict(points)))

    @property
    def losses(self) -> list[tuple[int, float]]:
        return [(step, points["train/loss"]) for step, points in self.points]


def make(log: Log, window: int = 10, *, on_nan: str = "stop") -> History:
    return History(log, window, lambda step: step / 1000, on_nan=on_nan)


def feed(history: History, losses: Sequence[float], sizes: Sequence[int]) -> None:
    step = 0
    for size in sizes:
        history.add(step, Call(losses[step : step + size]))
        step += size


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[int], int]:
    sizes = draw(st.lists(st.integers(1, 17), min_size=1, max_size=12))
    return sum(sizes), sizes, draw(st.integers(1, 20))


@given(splits())
def test_points_are_the_same_however_the_steps_are_cut_into_calls(case: tuple[int, list[int], int]) -> None:
    total, sizes, window = case
    losses = [float(step) for step in range(total)]
    one, many = Log(), Log()
    for log, cut in ((one, [1] * total), (many, sizes)):
        history = make(log, window)
        feed(history, losses, cut)
        history.flush()
    assert many.points == one.points
    ends = sorted({*range(window, total + 1, window), total})
    starts = [0, *ends[:-1]]
    means = [float(np.mean(losses[start:end])) for start, end in zip(starts, ends, strict=True)]
    # Sums of whole numbers below 2**53 are exact, so the means are equal to the last bit or two.
    assert one.losses == [(end, pytest.approx(mean, rel=1e-15)) for end, mean in zip(ends, means, strict=True)]


def test_a_point_holds_loss_accuracy_and_the_rate_of_its_last_step() -> None:
    log = Log()
    history = make(log, 2)
    feed(history, [1.0, 3.0], [2])
    history.drain()
    assert log.points == [
        (2, {"train/loss": 2.0, "train/accuracy": pytest.approx(0.02), "learning_rate": pytest.approx(0.001)})
    ]
    assert history.train == [(2, 2.0, pytest.approx(0.02))]


def test_windows_lie_on_global_steps_across_epochs() -> None:
    log = Log()
    history = make(log, 4)
    history.add(0, Call([0.0] * 6))
    history.drain()
    history.start_epoch()
    history.add(6, Call([4.0] * 6))
    history.drain()
    assert log.losses == [(4, 0.0), (8, 2.0), (12, 4.0)]


def test_a_call_is_read_only_when_the_next_one_was_started() -> None:
    history = make(Log())
    first, second = Call([1.0]), Call([1.0])
    history.add(0, first)
    assert first.reads == []
    history.add(1, second)
    assert (len(first.reads), len(second.reads)) == (1, 0)
    history.drain()
    assert (len(first.reads), len(second.reads)) == (1, 1)


def test_flush_logs_the_shorter_last_window_once() -> None:
    log = Log()
    history = make(log, 10)
    feed(history, [1.0] * 10 + [4.0, 6.0], [6, 6])
    history.flush()
    history.flush()
    assert log.losses == [(10, 1.0), (12, 5.0)]


def test_flush_after_a_whole_window_or_no_step_logs_nothing_more() -> None:
    log = Log()
    history = make(log, 2)
    history.flush()
    assert log.points == []
    feed(history, [1.0, 1.0], [2])
    history.flush()
    assert log.losses == [(2, 1.0)]


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_raises_with_its_step(bad: float) -> None:
    history = make(Log())
    history.add(0, Call([1.0] * 5))
    history.add(5, Call([1.0, 1.0, bad, bad]))
    with pytest.raises(EngineError, match=rf"the loss is {bad} at step 8 and trainer.on_nan=stop"):
        history.drain()


def test_every_window_up_to_the_bad_step_is_logged_before_the_error() -> None:
    log = Log()
    history = make(log, 2)
    history.add(0, Call([1.0, 1.0, 2.0, 2.0, NAN, 1.0]))
    with pytest.raises(EngineError, match="step 5"):
        history.drain()
    assert log.losses[:2] == [(2, 1.0), (4, 2.0)]


def test_flush_after_the_error_logs_the_rest_and_names_no_later_step() -> None:
    # As the loop does it: the error comes from `add`, the next call is out already, and `flush` follows.
    log = Log()
    history = make(log, 10)
    history.add(0, Call([1.0] * 3 + [NAN]))
    with pytest.raises(EngineError, match="step 4"):
        history.add(4, Call([NAN] * 4))
    history.flush()
    assert [step for step, _ in log.points] == [8]


def test_continue_logs_what_is_not_finite_and_goes_on() -> None:
    log = Log()
    history = make(log, 2, on_nan="continue")
    feed(history, [1.0, NAN, 3.0, 3.0], [4])
    history.drain()
    assert [step for step, _ in log.losses] == [2, 4]
    assert math.isnan(log.losses[0][1])
    assert log.losses[1][1] == 3.0


def test_restore_logs_nothing_from_the_bad_step_on_and_goes_on_where_it_is_told() -> None:
    log = Log()
    history = make(log, 2, on_nan="restore")
    feed(history, [1.0, 3.0], [2])
    history.drain()
    held = history.arrays()
    history.add(2, Call([5.0, 5.0, 7.0, NAN, 7.0, 7.0]))
    with pytest.raises(NotFiniteError, match="step 6"):
        history.add(8, Call([NAN] * 4))
    assert log.losses == [(2, 2.0), (4, 5.0)]
    history.go_back(Restore(6, 2, 0.5), held)
    assert history.epoch_means() == (2.0, pytest.approx(0.02))
    history.add(2, Call([4.0, 4.0]))
    history.drain()
    assert log.losses == [(2, 2.0), (4, 5.0), (4, 4.0)]
    assert history.train == [(2, 2.0, pytest.approx(0.02)), (4, 4.0, pytest.approx(0.04))]
    assert log.points[-1][1]["learning_rate"] == pytest.approx(0.5 * 0.003)
    history.add(4, Call([NAN]))
    with pytest.raises(NotFiniteError, match="step 5"):
        history.drain()


def test_a_restored_history_logs_the_same_points_again_with_the_same_rates() -> None:
    first, again = Log(), Log()
    history = make(first, 1, on_nan="restore")
    feed(history, [1.0] * 4, [4])
    history.drain()
    history.go_back(Restore(5, 4, 0.5), history.arrays())
    history.add(4, Call([1.0] * 3))
    history.drain()
    restored = make(again, 1, on_nan="restore")
    restored.restore(7, history.arrays())
    assert again.points == first.points
    assert restored.rate_factor(7) == 0.5


def test_how_fast_training_was_is_kept_and_logged_again_once_a_step() -> None:
    first, log = make(Log()), Log()
    first.add_rate(4, 2.0, 64)
    first.add_rate(4, 3.0, 64)
    first.add_rate(8, 0.0, 64)
    history = make(log)
    history.restore(8, first.arrays())
    assert log.points == [(4, {"throughput/examples_per_second": 128.0, "throughput/step_ms": 500.0})]
    history.add_rate(9, 4.0, 64)
    assert [step for step, *_ in history.rates] == [4, 9]


def test_epoch_means_are_over_the_steps_of_the_epoch_alone() -> None:
    history = make(Log())
    assert all(math.isnan(mean) for mean in history.epoch_means())
    history.add(0, Call([1.0, 3.0, 5.0]))
    history.drain()
    assert history.epoch_means() == (3.0, pytest.approx(0.03))
    history.start_epoch()
    history.add(3, Call([10.0]))
    history.add(4, Call([20.0]))
    assert history.epoch_means()[0] == 10.0  # of the calls read so far
    history.drain()
    assert history.epoch_means()[0] == 15.0


def test_an_evaluation_is_logged_at_its_step_and_kept() -> None:
    log = Log()
    history = make(log)
    metrics = EvalMetrics(0.5, 0.9, 10, np.zeros((2, 2), np.int64))
    history.add_evaluation(30, metrics)
    assert log.points == [(30, {"eval/loss": 0.5, "eval/accuracy": 0.9})]
    assert history.evaluations == [(30, metrics)]
