"""Both sides get the batches that training begins with, through files that hold nothing but arrays and JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import runner.data
from runner.config.schema import DatasetConfig, RuleConfig, RunConfig
from runner.data import Dataset
from runner.training import feed
from runner.verify.request import Request, make_request, read_request, write_request
from tests.engine import cases


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return runner.data.load(DatasetConfig(name="digits"))


def config(**dataset: object) -> RunConfig:
    made = cases.config({"batch": 2})
    made.dataset = DatasetConfig(name="digits", batch_size=64, **dataset)  # type: ignore[arg-type]
    return made


def trained_on(made: RunConfig, data: Dataset, epochs: int, steps: int) -> list[np.ndarray]:
    """Returns labels and weights of each batch, as the training loop's feed gives them."""
    found = []
    for epoch in range(epochs):
        with feed.training(made, data.train, epoch, steps, feed.CallSize(1, 1), lambda batches: batches) as batches:  # type: ignore[arg-type,return-value]
            found += [np.stack([each.labels[0], each.weights[0]]) for each in batches]
    return found


@pytest.mark.parametrize(("remainder", "per_epoch"), [("drop", 22), ("pad", 23)])
def test_the_batches_are_trainings_first_across_epochs(digits: Dataset, remainder: str, per_epoch: int) -> None:
    made = config(remainder=remainder)
    made.verify.steps = per_epoch + 3
    request = make_request(made, digits)
    expected = trained_on(made, digits, 2, per_epoch)[: per_epoch + 3]
    got = [np.stack(pair) for pair in zip(request.batches.labels, request.batches.weights, strict=True)]
    np.testing.assert_array_equal(got, expected)
    assert request.total_steps == made.trainer.epochs * per_epoch
    assert (request.batches.weights[22].sum() < 64) == (remainder == "pad")


def test_a_request_is_read_as_it_was_written(digits: Dataset, tmp_path: Path) -> None:
    made = config()
    made.layout.rules = [RuleConfig(match="d1/kernel", spec=[None, "batch"])]
    made.model.options = {"hidden": [128, 7], "activation": "tanh", "nested": {"a": [1.5, None]}}
    made.verify.steps = 3
    request = make_request(made, digits)
    write_request(tmp_path, request)
    again = read_request(tmp_path)
    assert again.config == request.config
    assert (again.data, again.total_steps, again.batches.steps) == (request.data, request.total_steps, 3)
    np.testing.assert_array_equal(again.batches.images, request.batches.images)
    assert again.batches.images.dtype == np.uint8


@pytest.mark.parametrize(("steps_per_call", "expected"), [(None, [7]), (3, [3, 3, 1]), (20, [7])])
def test_stacks_are_as_long_as_trainings_calls(
    digits: Dataset, steps_per_call: int | None, expected: list[int]
) -> None:
    made = config()
    made.verify.steps, made.trainer.steps_per_call = 7, steps_per_call
    request: Request = make_request(made, digits)
    stacks = request.stacks()
    assert [stack.steps for stack in stacks] == expected
    assert len({stack.images.shape for stack in stacks}) == 1, "one shape, so one program"
    labels = np.concatenate([stack.labels[: stack.steps] for stack in stacks])
    np.testing.assert_array_equal(labels, request.batches.labels)
