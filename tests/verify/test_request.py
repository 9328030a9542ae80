"""Both sides get the batches that training begins with."""

import numpy as np
import pytest

from runner.config.schema import DatasetConfig, RunConfig
from runner.data import loading
from runner.data.base import ROW, WEIGHT, Array, Dataset
from runner.data.workers import Workers
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.train import feed
from runner.verify.request import Request, first_batches
from tests.configs import with_keys
from tests.engine import cases


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return loading.load(DatasetConfig(name="digits"))


def config(**dataset: object) -> RunConfig:
    made = cases.config({"batch": 2})
    return with_keys(made, {"dataset": DatasetConfig(name="digits", batch_size=64, **dataset)})  # type: ignore[arg-type]


def make_request(made: RunConfig, data: Dataset) -> Request:
    task = make_task(made.task, data.specs, data.train)
    batches = first_batches(made.dataset, made.trainer, made.verify.steps, data.train, task)
    return Request(made, DataSpec(task.arrays, task), 0, batches)


def trained_on(made: RunConfig, data: Dataset, epochs: int, steps: int) -> list[Array]:
    """Returns labels and weights of each batch, as the training loop's feed gives them."""
    found = []
    task = make_task(made.task, data.specs, data.train)
    with Workers(made.dataset) as workers:
        examples = feed.Examples(data.train, task, workers.reader(data.train))
        for epoch in range(epochs):
            plan = feed.epoch_plan(made.dataset, made.trainer, examples.source, epoch, steps)
            for each in examples.chunks(plan, lambda _: 1, 1, epoch):
                found.append(np.stack([each.arrays["label"][0], each.arrays[WEIGHT][0]]))
    return found


@pytest.mark.parametrize(("remainder", "per_epoch"), [("drop", 22), ("pad", 23)])
def test_the_batches_are_trainings_first_across_epochs(digits: Dataset, remainder: str, per_epoch: int) -> None:
    made = with_keys(config(remainder=remainder), {"verify.steps": per_epoch + 3})
    request = make_request(made, digits)
    expected = trained_on(made, digits, 2, per_epoch)[: per_epoch + 3]
    arrays = request.batches.arrays
    got = [np.stack(pair) for pair in zip(arrays["label"], arrays[WEIGHT], strict=True)]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(request.batches.weights, arrays[WEIGHT])
    assert (request.batches.weights[22].sum() < 64) == (remainder == "pad")


def test_an_engine_that_keeps_the_examples_finds_each_by_its_row(digits: Dataset) -> None:
    made = with_keys(config(remainder="pad"), {"verify.steps": 4})
    request = make_request(made, digits)
    kept = request.source().arrays
    by_row = request.by_row().batches
    assert set(by_row.arrays) == {ROW, WEIGHT}
    for name in ("image", "label"):
        np.testing.assert_array_equal(kept[name][by_row.arrays[ROW]], request.batches.arrays[name])
    np.testing.assert_array_equal(by_row.weights, request.batches.weights)


@pytest.mark.parametrize(("steps_per_call", "expected"), [(None, [7]), (3, [3, 3, 1]), (20, [7])])
def test_stacks_are_as_long_as_trainings_calls(
    digits: Dataset, steps_per_call: int | None, expected: list[int]
) -> None:
    made = with_keys(config(), {"verify.steps": 7, "trainer.steps_per_call": steps_per_call})
    request: Request = make_request(made, digits)
    stacks = request.stacks()
    assert [stack.steps for stack in stacks] == expected
    assert len({stack.arrays["image"].shape for stack in stacks}) == 1, "one shape, so one program"
    labels = np.concatenate([stack.arrays["label"][: stack.steps] for stack in stacks])
    np.testing.assert_array_equal(labels, request.batches.arrays["label"])


@pytest.mark.parametrize(
    ("axis", "eval_batch", "sizes"), [(2, None, [63]), (8, None, [60]), (8, 16, [16, 16, 16, 12])]
)
def test_an_evaluation_ends_in_a_batch_that_the_mesh_pads(
    digits: Dataset, axis: int, eval_batch: int | None, sizes: list[int]
) -> None:
    made = with_keys(config(eval_batch_size=eval_batch), {"mesh.axes": {"batch": axis}, "verify.steps": 2})
    request = make_request(made, digits)
    batches = request.evaluation(1)
    assert [int(each.arrays[WEIGHT].sum()) for each in batches] == sizes
    assert all(each.weights.shape[1] % axis == 0 for each in batches)
    assert batches[-1].arrays[WEIGHT][0, -1] == 0, "padding"
    labels = np.concatenate([each.arrays["label"][each.arrays[WEIGHT] > 0] for each in batches])
    np.testing.assert_array_equal(labels, request.batches.arrays["label"][1, : sum(sizes)])
