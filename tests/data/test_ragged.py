"""Sequences of different lengths: padded arrays, and losses that are those of each sequence alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import arrays
from runner.config import values
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import OPTIONS, TaskConfig
from runner.data import checks as checks_data
from runner.data import ragged
from runner.data.base import WEIGHT, Dataset, Encoding
from runner.data.loading import load
from runner.errors import ConfigError, DataError
from runner.task.base import Task
from runner.task.registry import make_task

CODE = """
import numpy as np

TOKENS = [[3, 1, 2], [4], [2, 5, 1, 1, 3], [6, 2]]

def split(tokens):
    return {
        "tokens": tokens,
        "label": [np.array(sequence, np.uint8) % 4 for sequence in tokens],
        "label_weight": [np.ones(len(sequence)) for sequence in tokens],
    }

def load(longest=5):
    return {"train": split(TOKENS), "test": split([[1] * longest])}

def vectors():
    return {"x": [np.ones((2, 3)), np.zeros((0, 3)), np.full((1, 3), 7.0)], "label": [0, 1, 0]}

def mixed():
    return {"x": [np.ones((2, 3)), np.ones((1, 4))], "label": [0, 1]}

def words():
    return {"x": [["a"], ["b", "c"]], "label": [0, 1]}

class Rows:
    def __len__(self): return 4
    def __getitem__(self, row): return {"x": 1.0, "label": 0}
"""


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("ragged_data.py").write_text(CODE)


def opened(name: str = "load", encoding: Encoding | None = None, **keys: Any) -> Dataset:
    pad = {"tokens": 0, "label": -1, "label_weight": 0}
    config = DatasetConfig(**({"name": "custom", "target": f"ragged_data.{name}", "test": "test", "pad": pad} | keys))
    values.check(config, "dataset")
    checks_data.check(config)
    return load(config, 0, encoding)


def test_sequences_are_padded_to_the_longest_of_any_split() -> None:
    data = opened(options={"longest": 6})
    train = data.train.read(np.arange(4))
    assert train["tokens"].tolist() == [
        [3, 1, 2, 0, 0, 0],
        [4, 0, 0, 0, 0, 0],
        [2, 5, 1, 1, 3, 0],
        [6, 2, 0, 0, 0, 0],
    ]
    # -1 is in no uint8, and padding is as the key says.
    assert train["label"][1].tolist() == [0, -1, -1, -1, -1, -1]
    assert {name: array.dtype.name for name, array in train.items()} == {
        "tokens": "int32",
        "label": "int32",
        "label_weight": "float32",
    }
    assert data.encoding.lengths == {"tokens": 6, "label": 6, "label_weight": 6}
    assert opened(pad_length=9).specs["tokens"].shape == (9,)


def test_an_empty_sequence_does_not_make_integers_floats() -> None:
    empty_first = ragged.read([[], [2**24 + 1, 2]], "x")
    of_vectors = ragged.read([[], np.ones((2, 3)), np.zeros((0, 3))], "y")
    all_empty = ragged.read([[], []], "x")
    splits = {"train": {"x": empty_first, "y": of_vectors}, "test": {"x": all_empty, "y": all_empty}}
    arrays_, _ = ragged.padded(splits, {"x": 0, "y": 0.5}, None, {})
    x = arrays_["train"]["x"]
    assert isinstance(x, np.ndarray)
    assert x.dtype.kind == "i"
    assert x.tolist() == [[0, 0], [2**24 + 1, 2]]
    assert arrays_["train"]["y"].shape == (3, 2, 3)  # type: ignore[union-attr]
    assert arrays_["test"]["x"].dtype.kind == "i"  # type: ignore[union-attr]
    fractions, _ = ragged.padded({"train": {"x": all_empty}}, {"x": 0.5}, None, {})
    assert fractions["train"]["x"].dtype == np.float32  # type: ignore[union-attr]


def test_lists_of_lists_of_different_lengths_are_looked_at_by_their_length_only() -> None:
    assert ragged.is_ragged([[[1], [1, 2]], [[1]]])
    assert not ragged.is_ragged([[[1], [1, 2]], [[1], [2]]])
    assert not ragged.is_ragged(np.zeros((3, 2)))
    assert not ragged.is_ragged(np.array(None))
    assert ragged.is_ragged(np.array([np.ones(1), np.ones(2)], object))


def test_a_recorded_run_keeps_its_length() -> None:
    recorded = Encoding.from_json(json.loads(json.dumps(opened(options={"longest": 8}).encoding.to_json())))
    assert opened(encoding=recorded).specs["tokens"].shape == (8,)
    with pytest.raises(DataError, match=r"tokens of split test: a sequence has 9 steps, more than 8; .*pad_length=9"):
        opened(encoding=recorded, options={"longest": 9})


def test_padded_arrays_are_not_standardized_because_padding_would_count() -> None:
    keys = {"pad": {"x": 0.0}, "standardize": True, "test": "train"}
    assert opened("vectors", **keys).train.read(np.array([2]))["x"][0, :, 0].tolist() == [7.0, 0.0]
    recorded = Encoding(mean={"x": (1.0,) * 3}, deviation={"x": (2.0,) * 3}, lengths={"x": 2})
    assert opened("vectors", recorded, **keys).train.read(np.array([2]))["x"][0, 0].tolist() == [3.0] * 3


@pytest.mark.parametrize(
    ("name", "keys", "error", "message"),
    [
        (
            "load",
            {"standardize": ["tokens"]},
            ConfigError,
            "dataset.standardize=.*must not name tokens, whose padding",
        ),
        ("load", {"pad": {"token": 0}}, ConfigError, "dataset.pad=token: unknown array"),
        (
            "load",
            {"pad": {"tokens": 0.5, "label": 0, "label_weight": 0}},
            DataError,
            "integers can't be padded with 0.5",
        ),
        ("load", {"pad_length": 4}, DataError, "a sequence has 5 steps, more than 4; shorten it, or train"),
        ("mixed", {"pad": {"x": 0}, "test": "train"}, DataError, "may differ in their length only"),
        ("words", {"pad": {"x": 0}, "test": "train"}, DataError, "example 0 is not a sequence of numbers"),
        ("vectors", {"pad": {"x": 0, "label": 0}, "test": "train"}, DataError, "label: example 0 is not a sequence"),
        ("vectors", {"pad": {}, "test": "train"}, DataError, r"x has sequences of different .*dataset.pad=\{x:0\}"),
        (
            "vectors",
            {"pad": None, "pad_length": 3},
            ConfigError,
            "dataset.pad_length=3: needs dataset.pad, whose arrays",
        ),
        ("Rows", {"test": "train"}, ConfigError, "dataset.pad=.*returns an object with __getitem__"),
    ],
)
def test_errors_name_the_place_and_the_fix(
    name: str, keys: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(name, **keys)


def task_of(name: str, data: Dataset, **options: Any) -> Task:
    config = TaskConfig(name=name, target=["label"], options=asdict(OPTIONS[name](**options)))
    return make_task(config, data.specs, data.train, None, None)


@pytest.mark.parametrize("name", ["positions", "language_model"])
def test_the_padded_loss_and_metrics_are_those_of_each_sequence_alone(name: str) -> None:
    if name == "positions":
        data = opened(pad={"tokens": 0, "label": -1, "label_weight": 0})
        task = task_of(name, data, ignore_index=-1, classes=8, label_weight="label_weight")
    else:
        data = opened(pad={"tokens": 0, "label": 0, "label_weight": 0})
        task = task_of(name, data, vocabulary=8)
    batch = data.train.read(np.arange(4)) | {WEIGHT: np.ones(4, np.float32)}
    logits = np.random.default_rng(0).normal(size=(4, 5, 8)).astype(np.float32)
    ops = arrays.of(np)
    loss = np.asarray(task.loss(ops, logits, batch))
    right = np.asarray(task.metrics(ops, logits, batch)["accuracy"])
    lengths = [3, 1, 5, 2]
    weights = np.asarray(task.weights(batch))
    np.testing.assert_allclose(weights, lengths)
    for row, length in enumerate(lengths):
        alone = {key: array[row : row + 1, :length] for key, array in batch.items() if key != WEIGHT}
        label = alone["label"][0]
        scores = logits[row, :length].astype(np.float64)
        entropies = np.log(np.exp(scores).sum(-1)) - scores[np.arange(length), label]
        # The rounding of float32 in the sum.
        np.testing.assert_allclose(loss[row], entropies.sum(), rtol=1e-5)
        assert right[row] == (scores.argmax(-1) == label).sum()
