"""What all engines share: batches cut into micro-batches, the sums of a call's steps, evaluations added up."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from runner.data.base import WEIGHT, Array
from runner.engine import calls, evaluation
from runner.engine.base import HostBatches
from runner.engine.evaluation import BatchResult, evaluate


class OfSums:
    """Stands for a task whose totals are sums of outputs."""

    keeps_outputs = True

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        assert all(total.dtype == np.float64 for total in totals.values())
        return {**totals, "square": totals["sum"] ** 2}

    def joined(self, sums: Mapping[str, Array], addends: Mapping[str, Array]) -> dict[str, Array]:
        return {name: sums[name] + addend for name, addend in addends.items()}

    def mean_loss(self, totals: Mapping[str, Array]) -> float:
        return float(totals["loss"] / totals["weight"])

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        return {name: float(total) for name, total in totals.items()}


TASK: Any = OfSums()


def batch(values: list[float], weights: list[float]) -> HostBatches:
    weight = np.asarray([weights], np.float32)
    return HostBatches({"x": np.asarray([values], np.float32), WEIGHT: weight}, weight, 1)


def start(given: HostBatches) -> BatchResult[Array]:
    x = given.arrays["x"][0]
    return BatchResult(x, {"sum": np.float32(np.nansum(x[given.arrays[WEIGHT][0] > 0]))}, x[:, None])


def test_every_array_of_a_call_is_cut_into_runs_of_neighbors() -> None:
    weights = np.ones((2, 6), np.float32)
    arrays = {"a": np.arange(24).reshape(2, 6, 2), WEIGHT: weights}
    cut = calls.cut(HostBatches(arrays, weights, 2), 3)
    assert {name: array.shape for name, array in cut.items()} == {"a": (6, 2, 2), WEIGHT: (6, 2)}
    assert cut["a"][1].tolist() == [[4, 5], [6, 7]]


def test_padding_is_left_out_of_a_steps_sums_though_it_is_no_number() -> None:
    weights = np.asarray([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]], np.float32)
    loss = np.asarray([[1, 2], [3, np.nan], [1, 1], [1, 1], [9, 9], [9, 9]], np.float32)
    pending = calls.PendingCall(
        {"loss": loss, "hits": loss}, np.asarray([0.5, 0.5, 0.25, 0.75, 9, 9], np.float32), weights, 2, 2, np.asarray
    )
    read = pending.read()
    assert read.weight.tolist() == [3, 4]
    assert read.sums["hits"].tolist() == [6, 4]
    assert read.sums["loss"].tolist() == [6 + 0.5 * 3, 4 + 0.5 * 4], "regularization is added to the mean loss"


def test_a_call_of_a_program_a_step_is_read_as_one_of_a_loop() -> None:
    weights = np.ones((2, 3), np.float32)
    rows = [np.asarray([1, 2, 3], np.float32), np.asarray([4, 5, 6], np.float32)]
    regularization = [np.float32(0.5), np.float32(1.0)]
    told: Any = (weights, 2, 1, np.asarray)
    listed = calls.PendingCall({"loss": rows}, regularization, *told).read()
    stacked = calls.PendingCall({"loss": np.stack(rows)}, np.stack(regularization), *told).read()
    assert listed.sums["loss"].tolist() == stacked.sums["loss"].tolist() == [7.5, 18]


def test_a_step_of_padding_alone_divides_by_one() -> None:
    assert calls.example_counts(np.asarray([[0, 0], [1, 0]], np.float32), 2).tolist() == [1, 1, 1, 1]


def test_an_evaluation_adds_up_in_float64_and_leaves_padding_out() -> None:
    batches = [batch([1, 2], [1, 1]), batch([1e-9, np.nan], [1, 0])]
    found = evaluate(TASK, batches, start, np.asarray, keep_outputs=True)
    assert found.examples == 3
    assert found.loss == (3 + np.float32(1e-9).astype(float)) / 3
    assert found.metrics["square"] == pytest.approx(9, abs=1e-12), "a task's addends are made batch by batch"
    assert (found.totals["loss"], found.totals[WEIGHT]) == (found.loss * 3, 3)
    assert found.outputs.tolist() == [[1], [2], [np.float32(1e-9)]]


def test_the_losses_of_layers_are_averaged_over_batches_as_many_times_as_these_have_examples() -> None:
    def with_added(given: HostBatches) -> BatchResult[Array]:
        result = start(given)
        return BatchResult(result.loss, result.totals, result.outputs, np.float32(given.arrays["x"].sum()))

    found = evaluate(TASK, [batch([1, 2], [1, 1]), batch([6, 0], [1, 0])], with_added, np.asarray)
    assert found.metrics["task_loss"] == 9 / 3
    assert found.loss == 9 / 3 + (2 * 3 + 1 * 6) / 3, "Keras's mean, weighted by batch size"
    without = evaluate(TASK, [batch([1, 2], [1, 1])], start, np.asarray)
    assert "task_loss" not in without.metrics


def test_a_trial_replaces_the_rows_after_the_kept_ones_alone() -> None:
    mixed = evaluation.refilled(batch([1, 2, 3, 4], [1, 1, 1, 1]), 2)
    assert mixed.arrays["x"].tolist() == [[1, 2, 2, 1]]
    alike = evaluation.refilled(batch([5, 5], [1, 0]), 1)
    assert alike.arrays["x"].tolist() == [[5, 0]], "a batch of one example is padded with something else"
    assert evaluation.without_padding(batch([5, 5], [1, 0])).arrays["x"].tolist() == [[5]]


def test_a_batch_is_read_when_the_next_one_has_been_started() -> None:
    happened: list[str] = []

    def batches() -> Iterator[HostBatches]:
        for _ in range(3):
            yield batch([1], [1])

    def started(given: HostBatches) -> BatchResult[Array]:
        happened.append("start")
        return start(given)

    def to_host(value: Array) -> Array:
        happened.append("read")
        return np.asarray(value)

    evaluate(TASK, batches(), started, to_host)
    assert happened == ["start", "start", "read", "read", "start", "read", "read", "read", "read"]


def test_outputs_are_kept_on_request_and_not_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate(TASK, [batch([1], [1])], start, np.asarray).outputs.shape == (0,)
    monkeypatch.setattr(evaluation, "MOST_KEPT", 8)
    kept = [evaluate(TASK, [batch([1], [1])] * n, start, np.asarray, keep_outputs=True).outputs for n in (2, 3)]
    assert [len(each) for each in kept] == [2, 0]
    monkeypatch.setattr(evaluation, "MOST_KEPT", 1)
    one = evaluate(TASK, [batch([1], [1])], start, np.asarray, keep_outputs=True).outputs
    assert len(one) == 1, "an export compares one example at least"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda a, b: {"a": a, "b": b}, ["a", "b"]),
        (lambda a, b: (a, b), ["output_0", "output_1"]),
        (lambda a, b: [a, {"inner": b}], ["output_0", "output_1_inner"]),
    ],
)
def test_several_outputs_are_kept_by_name(make: Callable[[Array, Array], Any], names: list[str]) -> None:
    def several(given: HostBatches) -> BatchResult[Array]:
        one = start(given)
        return BatchResult(one.loss, one.totals, make(one.loss, 2 * one.outputs))

    batches = [batch([1, 2], [1, 1]), batch([3, 9], [1, 0])]
    found = evaluate(TASK, batches, several, np.asarray, keep_outputs=True)
    assert (found.loss, found.outputs.shape) == (2, (0,))
    assert {name: rows.tolist() for name, rows in found.named_outputs.items()} == dict(
        zip(names, [[1, 2, 3], [[2], [4], [6]]], strict=True)
    )


def test_outputs_are_not_kept_where_one_has_no_row_per_example(caplog: pytest.LogCaptureFixture) -> None:
    def with_head(given: HostBatches) -> BatchResult[Array]:
        one = start(given)
        return BatchResult(one.loss, one.totals, {"rows": one.outputs, "head": np.zeros((3, 5), np.float32)})

    found = evaluate(TASK, [batch([1, 2], [1, 1])], with_head, np.asarray, keep_outputs=True)
    assert (found.loss, found.outputs.shape, dict(found.named_outputs)) == (1.5, (0,), {})
    assert "head has shape [3, 5], not one row per example" in caplog.text


def test_a_batch_tells_how_many_of_its_rows_are_examples() -> None:
    assert evaluation.examples_of(batch([1, 2, 3], [1, 1, 0])) == 2
    assert evaluation.examples_of(batch([1, 2], [1, 1])) is None
