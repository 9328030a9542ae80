from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import DatasetConfig, RunConfig, TrainerConfig
from runner.data import workers
from runner.data.base import ROW, WEIGHT, Array, ArraySource, ArraySpec, Batch, DataSource, Rows
from runner.data.sampler import eval_plan
from runner.engine.base import HostBatches, PlacedBatches
from runner.engine.common import Engine
from runner.task.base import LOSS, Task
from runner.train import feed
from tests.numpy_engine import KnownTask

SECONDS_A_CALL = 0.25


SPECS = {"image": ArraySpec((1, 1, 1), "uint8"), "label": ArraySpec((), "int32")}


def source(size: int) -> ArraySource:
    """Returns examples that are told apart by their label; the image says the same, and one array is for nobody."""
    labels = np.arange(1, size + 1, dtype=np.int32)
    arrays = {"image": (labels % 256).astype(np.uint8).reshape(size, 1, 1, 1), "label": labels, "other": labels}
    return ArraySource(arrays, SPECS | {"other": SPECS["label"]})


def split(size: int, *, cached: bool = False, task: Task | None = None) -> feed.Examples:
    reader = workers.Workers(DatasetConfig()).reader(source(size))
    return feed.Examples(source(size), task or KnownTask(SPECS), reader, cached)


def place(batches: HostBatches) -> PlacedBatches:
    return PlacedBatches(batches.arrays, batches.weights, batches.steps)


def config(batch_size: int, *, remainder: str = "drop", shuffle: bool = True) -> RunConfig:
    data = DatasetConfig(batch_size=batch_size, remainder=remainder, shuffle=shuffle)
    return RunConfig(dataset=data, trainer=TrainerConfig(seed=5))


def calls_of(
    run: RunConfig, data: feed.Examples, steps: int, a_call: int | None, epoch: int = 0
) -> list[PlacedBatches]:
    chosen = feed.StepsPerCall(a_call, 1)
    with feed.training(
        run.dataset, run.trainer, data, steps, (epoch + 1) * steps, chosen, place, start=epoch * steps
    ) as batches:
        return list(batches)


def joined(calls: list[PlacedBatches]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the real steps' images, labels and weights, one after the other."""
    names = ("image", "label", WEIGHT)
    images, labels, weights = (np.concatenate([c.arrays[name][: c.steps] for c in calls]) for name in names)
    return images, labels, weights


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("a_call", [2, 3, 5, 64, None])
def test_batches_do_not_depend_on_the_steps_per_call(a_call: int | None, remainder: str) -> None:
    data, run = split(53), config(5, remainder=remainder)
    steps = 11 if remainder == "pad" else 10
    one, many = (joined(calls_of(run, data, steps, size)) for size in (1, a_call))
    for first, second in zip(one, many, strict=True):
        np.testing.assert_array_equal(first, second)
    assert len(one[1]) == steps


def test_an_epoch_gives_each_example_once_and_another_epoch_another_order() -> None:
    data, run = split(53), config(5, remainder="pad")
    first, second = (joined(calls_of(run, data, 11, 4, epoch)) for epoch in (0, 1))
    for _, labels, weights in (first, second):
        assert sorted(labels[weights == 1]) == list(range(1, 54))
    assert not np.array_equal(first[1], second[1])


@pytest.mark.parametrize("start", [0, 3, 10, 17])
def test_the_batches_of_a_run_cross_epochs_and_end_with_the_run(start: int) -> None:
    data, run, limits = split(53), config(5), []

    def most(step: int) -> int:
        limits.append(step)
        return 7 - step % 7

    with feed.training(
        run.dataset, run.trainer, data, 10, 24, feed.StepsPerCall(4, 1), place, start=start, most=most
    ) as batches:
        calls = list(batches)
    _, labels, _ = joined(calls)
    epochs = [joined(calls_of(run, data, 10, 1, epoch))[1] for epoch in range(3)]
    np.testing.assert_array_equal(labels, np.concatenate(epochs)[start:24])
    starts = [start, *(start + np.cumsum([call.steps for call in calls])).tolist()]
    assert limits == starts[:-1], "each call asks for its limit by the step of the run"
    assert starts[-1] == 24
    for boundary in (7, 10, 14, 20, 21):
        assert boundary in starts or boundary < start, "no call passes a limit or the end of an epoch"


def test_every_call_has_the_capacity_and_padding_has_weight_0() -> None:
    calls = calls_of(config(5), split(53), 10, 4)
    assert [call.steps for call in calls] == [4, 4, 2]
    for call in calls:
        assert {name: array.shape for name, array in call.arrays.items()} == {
            "image": (4, 5, 1, 1, 1),
            "label": (4, 5),
            WEIGHT: (4, 5),
        }, "what the task does not read is not sent"
        assert (call.arrays[WEIGHT][: call.steps] == 1).all()
        assert not call.arrays[WEIGHT][call.steps :].any()
        np.testing.assert_array_equal(call.weights, call.arrays[WEIGHT])
    dtypes = {name: str(array.dtype) for name, array in calls[0].arrays.items()}
    assert dtypes == {"image": "uint8", "label": "int32", WEIGHT: "float32"}


@given(size=st.integers(1, 40), batch=st.integers(1, 45))
def test_evaluation_covers_each_example_once_in_order(size: int, batch: int) -> None:
    batches = list(feed.evaluation(split(size), batch))
    assert all(each.steps == 1 and each.arrays["label"].shape == (1, batch) for each in batches)
    labels = np.concatenate([each.arrays["label"][each.arrays[WEIGHT] == 1] for each in batches])
    np.testing.assert_array_equal(labels, np.arange(1, size + 1))
    assert {float(w) for each in batches for w in each.weights.ravel()} <= {0.0, 1.0}


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_the_rows_of_a_cached_split_name_the_same_examples(remainder: str) -> None:
    data, run = split(53), config(5, remainder=remainder)
    steps = 11 if remainder == "pad" else 10
    images, labels, weights = joined(calls_of(run, data, steps, 4))
    calls = calls_of(run, split(53, cached=True), steps, 4)
    assert all(set(call.arrays) == {ROW, WEIGHT} for call in calls)
    rows, same = (np.concatenate([call.arrays[name][: call.steps] for call in calls]) for name in (ROW, WEIGHT))
    assert rows.dtype == np.int32
    held = source(53).arrays
    np.testing.assert_array_equal(held["image"][rows], images)
    np.testing.assert_array_equal(held["label"][rows], labels)
    np.testing.assert_array_equal(same, weights)


class WeighsLabels(KnownTask):
    """Counts each example as often as its label says."""

    def weights(self, batch: Batch) -> Array:
        return np.asarray(batch[WEIGHT] * batch["label"], np.float32)


@pytest.mark.parametrize("cached", [False, True])
def test_the_task_decides_the_weight_of_an_example(cached: bool) -> None:
    task = WeighsLabels(SPECS)
    first = next(iter(feed.evaluation(split(7, cached=cached, task=task), 4)))
    np.testing.assert_array_equal(first.weights, [[1, 2, 3, 4]])
    np.testing.assert_array_equal(first.arrays[WEIGHT], [[1, 1, 1, 1]])


@dataclass
class Background:
    """Reads as workers do: what was begun is noted, and done when it is asked for."""

    source: DataSource
    in_background: bool
    log: list[str] = field(default_factory=list)

    def begin(self, epoch: int, rows: Rows) -> "Background":
        self.log.append(f"begin {rows.flat[0]} of epoch {epoch}")
        self.rows = rows
        copy = Background(self.source, self.in_background, self.log)
        copy.rows = rows
        return copy

    def result(self) -> dict[str, Array]:
        self.log.append(f"result {self.rows.flat[0]}")
        read = self.source.read(self.rows.ravel())
        return {name: array.reshape(*self.rows.shape, *array.shape[1:]) for name, array in read.items()}


@pytest.mark.parametrize(
    ("in_background", "expected"),
    [
        (True, ["begin 0", "begin 2", "result 0", "begin 4", "result 2", "result 4"]),
        (False, ["begin 0", "result 0", "begin 2", "result 2", "begin 4", "result 4"]),
    ],
)
def test_workers_read_one_call_ahead_and_data_in_memory_is_read_when_needed(
    in_background: bool, expected: list[str]
) -> None:
    reader = Background(source(6), in_background)
    examples = feed.Examples(source(6), KnownTask(SPECS), reader)
    chunks = list(examples.chunks(eval_plan(6, 2), lambda _: 1, 1, epoch=3))
    assert [line.removesuffix(" of epoch 3") for line in reader.log] == expected
    np.testing.assert_array_equal(np.concatenate([chunk.arrays["label"][0] for chunk in chunks]), np.arange(1, 7))


@pytest.mark.parametrize(("seconds", "steps"), [(0.01, 25), (0.1, 2), (0.25, 1), (3.0, 1), (1e-5, 64)])
def test_calls_adapt_to_a_quarter_of_a_second(seconds: float, steps: int) -> None:
    calls = feed.StepsPerCall(None, 1)
    for _ in range(6):
        calls.observe(seconds)
    assert calls.steps == steps


@given(
    st.lists(st.just(0.0) | st.floats(1e-9, 10), max_size=20),  # the clock counts nanoseconds
    st.integers(0, 1 << 26),
)
def test_calls_have_at_least_one_step_and_at_most_the_capacity(seconds: list[float], bytes_a_step: int) -> None:
    calls = feed.StepsPerCall(None, bytes_a_step)
    for each in seconds:
        before = calls.steps
        calls.observe(each)
        assert 1 <= calls.steps <= min(calls.capacity, 4 * before)
        assert calls.steps == before or calls.steps == 1 or calls.steps * each <= SECONDS_A_CALL * (1 + 1e-12)


@dataclass
class Tried:
    """An engine that notes the labels of the batches that it is given; no row reads another."""

    labels: list[list[int]] = field(default_factory=list)

    def with_and_without_others(self, batch: HostBatches, kept: int) -> tuple[dict[str, Array], dict[str, Array]]:
        self.labels.append(batch.arrays["label"][0].tolist())
        return {LOSS: np.zeros(kept)}, {LOSS: np.zeros(kept)}


def checked(run: RunConfig, engine: Engine, train: feed.Examples) -> list[str]:
    return feed.check_rows(run.dataset, run.trainer, run.task, engine, train)


def test_a_users_loss_is_tried_on_a_batch_and_on_the_same_in_reverse_order() -> None:
    task = KnownTask(SPECS)
    task.reads_batch = task.runs_user_code = True
    engine = Tried()
    assert checked(config(4), cast("Engine", engine), split(4, task=task)) == []
    assert engine.labels == [[1, 2, 3, 4], [4, 3, 2, 1]]
    engine = Tried()
    assert checked(config(4, remainder="pad"), cast("Engine", engine), split(7, task=task)) == []
    assert engine.labels == [[1, 2, 3, 1], [1, 2, 3, 1], [1, 2, 3, 4], [4, 3, 2, 1]]
