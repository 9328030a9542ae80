"""Sequence packing of whole examples: every example once, apart from the others, and full rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.config import values
from runner.config.schema_data import DatasetConfig
from runner.data import checks as checks_data
from runner.data.base import Dataset, Encoding, column
from runner.data.loading import load
from runner.data.packed_examples import best_fit
from runner.errors import ConfigError, DataError
from tests.data.test_ragged import task_of

CODE = """
import numpy as np

TOKENS = [[3, 1, 2], [4, 9], [2, 5, 1, 1, 3], [6, 2, 8], [7]]

def load():
    return {"tokens": TOKENS}

def tagged():
    return {"tokens": TOKENS, "label": [[token % 4 for token in row] for row in TOKENS]}

def vectors():
    return {"x": [np.full((len(row), 2), row[0] + 0.5) for row in TOKENS], "label": TOKENS}

def unequal():
    return {"tokens": TOKENS, "label": [[0]] * 5}

def classes():
    return {"tokens": TOKENS, "label": [0, 1, 0, 1, 1]}

def empty():
    return {"tokens": [[], []]}
"""

TOKENS = [[3, 1, 2], [4, 9], [2, 5, 1, 1, 3], [6, 2, 8], [7], [5, 5, 5, 5], [9, 9], [8]]
PACKED = [[3, 1, 2, 9, 9], [4, 9, 6, 2, 8], [2, 5, 1, 1, 3], [7, 5, 5, 5, 5], [8, 0, 0, 0, 0]]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("packed_data.py").write_text(CODE)


def opened(function: str = "load", **keys: Any) -> Dataset:
    defaults = {
        "name": "custom",
        "target": f"packed_data.{function}",
        "test": "train",
        "pad": {"tokens": 0},
        "pack": True,
    }
    config = DatasetConfig(**(defaults | keys))
    values.check(config, "dataset")
    checks_data.check(config)
    return load(config)


@pytest.mark.parametrize("seed", range(4))
def test_best_fit_has_every_example_once_and_wastes_little(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 65, 500)
    rows = best_fit(lengths, 64)
    assert sorted(example for row in rows for example in row) == list(range(500))
    assert max(lengths[row].sum() for row in rows) <= 64
    # Best-fit decreasing needs at most 11/9 of the fewest rows, and 6/9 of one more.
    assert len(rows) <= 11 / 9 * np.ceil(lengths.sum() / 64) + 1
    assert rows == best_fit(lengths.copy(), 64)


def test_a_row_has_its_examples_one_after_the_other() -> None:
    data = opened()
    assert {name: spec.shape for name, spec in data.train.specs.items()} == dict.fromkeys(
        ["tokens", "segments", "positions", "label", "label_weight"], (5,)
    )
    rows = data.train.read(np.arange(data.train.size))
    assert rows["tokens"].tolist() == [[3, 1, 2, 7, 0], [4, 9, 6, 2, 8], [2, 5, 1, 1, 3]]
    assert rows["segments"].tolist() == [[1, 1, 1, 2, 0], [1, 1, 2, 2, 2], [1, 1, 1, 1, 1]]
    assert rows["positions"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]
    # The next token of the same example; the last one of an example has none.
    assert rows["label"].tolist() == [[1, 2, 0, 0, 0], [9, 0, 2, 8, 0], [5, 1, 1, 3, 0]]
    assert rows["label_weight"].tolist() == [[1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 0]]
    assert data.selection["train"] == "train: 5 examples in 3 rows of 5 steps, 93.3% full"


def test_labels_of_the_dataset_count_at_every_step_but_padding() -> None:
    data = opened("tagged", pad={"tokens": 0, "label": 0}, pad_length=8)
    rows = data.train.read(np.arange(data.train.size))
    assert rows["tokens"].tolist() == [[3, 1, 2, 2, 5, 1, 1, 3], [4, 9, 6, 2, 8, 7, 0, 0]]
    assert rows["label"].tolist() == [[3, 1, 2, 2, 1, 1, 1, 3], [0, 1, 2, 2, 0, 3, 0, 0]]
    assert rows["label_weight"].tolist() == [[1] * 8, [1] * 6 + [0] * 2]
    # Padding is left out although its label is a class, and the weights are no input of the model.
    task = task_of("positions", data, classes=4)
    assert task.weights({"weight": np.ones(2, np.float32)} | rows).tolist() == [8, 6]
    assert task.input_names == ("tokens", "segments", "positions")


def test_a_language_model_takes_the_positions_of_packing_and_no_others() -> None:
    packed = task_of("language_model", opened(), vocabulary=16)
    assert packed.input_names == ("tokens", "segments", "positions")
    keys = {"pad": {"x": 0.0, "label": 0}, "pack": True}
    assert opened("vectors", **keys).train.specs["x"].shape == (5, 2)
    rows = opened("vectors", **keys).train.read(np.array([0]))
    assert rows["x"][0, :, 0].tolist() == [3.5, 3.5, 3.5, 7.5, 0.0]


def test_splits_are_parts_of_the_examples_and_not_of_the_rows() -> None:
    data = opened(train="train[:3]", test="train[3:]")
    assert data.train.read(np.arange(data.train.size))["tokens"].tolist() == [[3, 1, 2, 4, 9], [2, 5, 1, 1, 3]]
    assert data.test.read(np.arange(data.test.size))["tokens"].tolist() == [[6, 2, 8, 7, 0]]


def test_padded_arrays_are_not_standardized_because_padding_would_count() -> None:
    keys = {"pad": {"x": 0.0, "label": 0}, "standardize": True, "pack": False}
    assert opened("vectors", **keys).train.read(np.array([1]))["x"][0, :, 0].tolist() == [4.5, 4.5, 0, 0, 0]
    recorded = Encoding(mean={"x": (1.0, 1.0)}, deviation={"x": (2.0, 2.0)}, lengths={"x": 5, "label": 5})
    config = DatasetConfig(**{"name": "custom", "target": "packed_data.vectors", "test": "train"} | keys)
    assert load(config, 0, recorded).train.read(np.array([1]))["x"][0, 0].tolist() == [1.75, 1.75]


@pytest.mark.parametrize(
    ("name", "keys", "error", "message"),
    [
        ("load", {"pad": None}, ConfigError, "dataset.pack=true: needs dataset.pad, whose arrays it packs"),
        ("load", {"pad": {"positions": 0}}, ConfigError, "dataset.pad={positions:0}: must not name positions"),
        (
            "load",
            {"standardize": ["tokens"]},
            ConfigError,
            "dataset.standardize=.*must not name tokens, whose padding",
        ),
        ("load", {"pad_length": 4}, DataError, "example 2 has 5 steps, more than 4"),
        ("unequal", {"pad": {"tokens": 0, "label": 0}}, DataError, "example 0 has 3 steps in tokens, but 1 in label"),
        ("classes", {}, DataError, "dataset.pack: the dataset has label with one value per example"),
        ("vectors", {"pad": {"x": 0.0}}, DataError, "label has sequences of different lengths"),
        ("empty", {}, DataError, "no example of split train has a step"),
    ],
)
def test_errors_name_the_place_and_the_fix(
    name: str, keys: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(name, **keys)


def saved(kind: str) -> dict[str, Any]:
    """Writes sequences as files of a kind; returns the keys that read them."""
    columns = {"input_ids": TOKENS, "tags": [[token % 3 for token in row] for row in TOKENS]}
    table = pa.table({name: pa.array(rows, pa.list_(pa.int64())) for name, rows in columns.items()})
    if kind == "huggingface":
        folder = Path("saved")
        folder.mkdir()
        with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        return {"name": kind, "path": "saved"}
    pq.write_table(table, "ids.parquet", row_group_size=8)
    return {"name": kind, "path": "ids.parquet"}


@pytest.mark.parametrize("kind", ["arrays", "parquet", "huggingface"])
def test_lists_in_files_are_padded_and_packed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    keys = saved(kind) | {"target": "", "test": "train", "features": ["input_ids"], "pad": {"input_ids": 0}}
    padded = opened(**keys, pack=False)
    assert padded.encoding.lengths == {"input_ids": 5}
    assert padded.train.read(np.array([1, 0]))["input_ids"].tolist() == [[4, 9, 0, 0, 0], [3, 1, 2, 0, 0]]
    packed = opened(**keys)
    rows = packed.train.read(np.arange(packed.train.size))
    assert rows["input_ids"].tolist() == PACKED
    assert rows["label"].tolist()[0] == [1, 2, 0, 9, 0]
    assert rows["label_weight"].sum() == sum(len(row) - 1 for row in TOKENS)
    assert column(packed.train, "segments") is None or kind == "arrays"
    # The second start reads the record of the scan.
    again = opened(**keys, pad_length=9)
    assert again.specs["input_ids"].shape == (9,)
    assert task_of("language_model", packed, vocabulary=16).input_names == ("input_ids", "segments", "positions")
    # A recorded run has its length.
    shorter = Encoding.from_json(opened(**keys, pad_length=5).encoding.to_json())
    assert load(DatasetConfig(**(keys | {"pack": True, "pad_length": 12})), 0, shorter).specs["segments"].shape == (5,)


@pytest.mark.parametrize("kind", ["arrays", "parquet", "huggingface"])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"pad": None, "pack": False}, DataError, "(row 1 has 3|but .3. in other rows); .*dataset.pad"),
        # A table in memory is read before the names are known.
        ({"pad": {"words": 0}}, (ConfigError, DataError), "dataset.pad=words: unknown array|column in dataset.pad"),
        ({"pad_length": 4}, DataError, "has 5 steps, more than 4"),
        ({"pad": {"input_ids": 0.5, "tags": 0}}, DataError, "integers can't be padded with 0.5"),
        ({"pad": {"input_ids": 0}, "features": None}, DataError, "tags: shape .2. per|has tags with one value"),
    ],
)
def test_lists_in_files_that_do_not_fit_name_the_place(
    kind: str, keys: dict[str, Any], error: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    defaults = {"target": "", "test": "train", "pad": {"input_ids": 0, "tags": -1}, "features": ["input_ids", "tags"]}
    content = saved(kind) | defaults | keys
    with pytest.raises(error, match=message):
        opened(**content).train.read(np.array([0, 2]))
