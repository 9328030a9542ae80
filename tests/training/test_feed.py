from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import DatasetConfig, RunConfig, TrainerConfig
from runner.data import Split
from runner.engine.base import HostBatches, PlacedBatches
from runner.training import feed

SECONDS_A_CALL = 0.25


def split(size: int) -> Split:
    """Returns examples that are told apart by their label; the image says the same."""
    labels = np.arange(1, size + 1, dtype=np.int32)
    return Split((labels % 256).astype(np.uint8).reshape(size, 1, 1, 1), labels)


def place(batches: HostBatches) -> PlacedBatches:
    return PlacedBatches(batches.images, batches.labels, batches.weights, batches.steps)


def config(batch_size: int, *, remainder: str = "drop", shuffle: bool = True) -> RunConfig:
    data = DatasetConfig(batch_size=batch_size, remainder=remainder, shuffle=shuffle)
    return RunConfig(dataset=data, trainer=TrainerConfig(seed=5))


def calls_of(run: RunConfig, data: Split, steps: int, a_call: int | None, epoch: int = 0) -> list[PlacedBatches]:
    with feed.training(run, data, epoch, steps, feed.CallSize(a_call, 1), place) as batches:
        return list(batches)


def joined(calls: list[PlacedBatches]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the real steps' images, labels and weights, one after the other."""
    arrays = ("images", "labels", "weights")
    images, labels, weights = (np.concatenate([getattr(c, name)[: c.steps] for c in calls]) for name in arrays)
    return images, labels, weights


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("a_call", [2, 3, 5, 64, None])
def test_batches_do_not_depend_on_the_steps_of_a_call(a_call: int | None, remainder: str) -> None:
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


def test_images_stay_with_their_labels() -> None:
    images, labels, _ = joined(calls_of(config(5), split(53), 10, 3))
    np.testing.assert_array_equal(images.reshape(labels.shape), labels % 256)


def test_steps_shorten_the_epoch_to_its_beginning() -> None:
    whole, short = (joined(calls_of(config(5), split(53), steps, 4))[1] for steps in (10, 3))
    np.testing.assert_array_equal(short, whole[:3])


def test_every_call_has_the_capacity_and_what_is_padding_has_weight_0() -> None:
    calls = calls_of(config(5), split(53), 10, 4)
    assert [call.steps for call in calls] == [4, 4, 2]
    for call in calls:
        assert call.images.shape == (4, 5, 1, 1, 1)
        assert call.labels.shape == call.weights.shape == (4, 5)
        assert (call.weights[: call.steps] == 1).all()
        assert not call.weights[call.steps :].any()
    assert (calls[0].images.dtype, calls[0].labels.dtype, calls[0].weights.dtype) == (np.uint8, np.int32, np.float32)


def test_examples_that_pad_the_last_batch_have_weight_0() -> None:
    _, labels, weights = joined(calls_of(config(5, remainder="pad", shuffle=False), split(12), 3, 1))
    np.testing.assert_array_equal(weights, [[1] * 5, [1] * 5, [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(labels[2, :2], [11, 12])


@given(size=st.integers(1, 40), batch=st.integers(1, 45))
def test_evaluation_covers_each_example_once_in_order(size: int, batch: int) -> None:
    batches = list(feed.evaluation(split(size), batch, None))
    assert all(each.steps == 1 and each.labels.shape == (1, batch) for each in batches)
    labels = np.concatenate([each.labels[each.weights == 1] for each in batches])
    np.testing.assert_array_equal(labels, np.arange(1, size + 1))
    assert {float(w) for each in batches for w in each.weights.ravel()} <= {0.0, 1.0}


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_places_in_a_split_that_is_held_are_those_of_the_images(remainder: str) -> None:
    data, run = split(53), config(5, remainder=remainder)
    steps = 11 if remainder == "pad" else 10
    images, labels, weights = joined(calls_of(run, data, steps, 4))
    with feed.training(run, data, 0, steps, feed.CallSize(4, 1), place, held=True) as batches:
        places, same_labels, same_weights = joined(list(batches))
    assert places.dtype == np.int32
    np.testing.assert_array_equal(data.images[places], images)
    np.testing.assert_array_equal(same_labels, labels)
    np.testing.assert_array_equal(same_weights, weights)


def test_calls_of_images_that_are_held_may_be_longer() -> None:
    data, run = split(53), config(5)
    assert (feed.call_size(run, data, held=False).capacity, feed.call_size(run, data, held=True).capacity) == (64, 512)
    run.trainer.steps_per_call = 7
    assert feed.call_size(run, data, held=True).capacity == 7


def test_a_fixed_size_is_cut_to_what_an_epoch_has() -> None:
    data, run = split(53), config(5)
    run.trainer.steps_per_call = 99_999_999
    assert [feed.call_size(run, data, held=held).capacity for held in (False, True)] == [10, 10]


def test_a_limit_ends_the_evaluation_after_that_many_batches() -> None:
    batches = list(feed.evaluation(split(40), 8, 2))
    np.testing.assert_array_equal(np.concatenate([each.labels[0] for each in batches]), np.arange(1, 17))


def test_a_fixed_size_stays_and_is_the_capacity() -> None:
    calls = feed.CallSize(7, 1 << 30)
    for seconds in (1.0, 1e-6, 1e-6, 10.0):
        calls.observe(seconds)
    assert (calls.steps, calls.capacity) == (7, 7)


@pytest.mark.parametrize(
    ("bytes_a_step", "capacity"), [(0, 64), (1, 64), (1 << 19, 64), (1 << 20, 32), (1 << 25, 1), (1 << 30, 1)]
)
def test_capacity_is_64_steps_or_32_mib_of_images(bytes_a_step: int, capacity: int) -> None:
    assert feed.CallSize(None, bytes_a_step).capacity == capacity


@pytest.mark.parametrize(("seconds", "steps"), [(0.01, 25), (0.1, 2), (0.25, 1), (3.0, 1), (1e-5, 64)])
def test_calls_adapt_to_a_quarter_of_a_second(seconds: float, steps: int) -> None:
    calls = feed.CallSize(None, 1)
    for _ in range(6):
        calls.observe(seconds)
    assert calls.steps == steps


def test_the_first_call_compiles_and_says_nothing() -> None:
    calls = feed.CallSize(None, 1)
    calls.observe(1e-6)
    assert calls.steps == 1
    calls.observe(1e-6)
    assert calls.steps == 4


@given(
    st.lists(st.just(0.0) | st.floats(1e-9, 10), max_size=20),  # the clock counts nanoseconds
    st.integers(0, 1 << 26),
)
def test_calls_hold_one_step_at_least_and_the_capacity_at_most(seconds: list[float], bytes_a_step: int) -> None:
    calls = feed.CallSize(None, bytes_a_step)
    for each in seconds:
        before = calls.steps
        calls.observe(each)
        assert 1 <= calls.steps <= min(calls.capacity, 4 * before)
        assert calls.steps == before or calls.steps == 1 or calls.steps * each <= SECONDS_A_CALL * (1 + 1e-12)
