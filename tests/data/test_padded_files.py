"""Columns of lists in files, padded to one length."""

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
from runner.data.base import Dataset, Encoding
from runner.data.loading import load
from runner.errors import ConfigError, DataError

TOKENS = [[3, 1, 2], [4, 9], [2, 5, 1, 1, 3], [6, 2, 8], [7], [5, 5, 5, 5], [9, 9], [8]]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(encoding: Encoding | None = None, **keys: Any) -> Dataset:
    config = DatasetConfig(**keys)
    values.check(config, "dataset")
    checks_data.check(config)
    return load(config, 0, encoding)


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
def test_lists_in_files_are_padded(kind: str) -> None:
    keys = saved(kind) | {"test": "train", "features": ["input_ids"], "pad": {"input_ids": 0}}
    padded = opened(**keys)
    assert padded.encoding.lengths == {"input_ids": 5}
    assert padded.train.read(np.array([1, 0]))["input_ids"].tolist() == [[4, 9, 0, 0, 0], [3, 1, 2, 0, 0]]
    # The second start reads the record of the scan. A recorded run has its length.
    shorter = Encoding.from_json(opened(**keys, pad_length=5).encoding.to_json())
    assert opened(shorter, **keys, pad_length=12).specs["input_ids"].shape == (5,)


@pytest.mark.parametrize("kind", ["arrays", "parquet", "huggingface"])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"pad": None}, DataError, "(row 1 has 3|but .3. in other rows); .*dataset.pad"),
        # A table in memory is read before the names are known.
        ({"pad": {"words": 0}}, (ConfigError, DataError), "dataset.pad=words: unknown array|column in dataset.pad"),
        ({"pad_length": 4}, DataError, "has 5 steps, more than 4"),
        ({"pad": {"input_ids": 0.5, "tags": 0}}, DataError, "integers can't be padded with 0.5"),
        ({"pad": {"input_ids": 0}, "features": None}, DataError, "tags: shape .2. per|(row 1 has 3|but .3. in other)"),
    ],
)
def test_lists_in_files_that_do_not_fit_name_the_place(
    kind: str, keys: dict[str, Any], error: Any, message: str
) -> None:
    defaults = {"test": "train", "pad": {"input_ids": 0, "tags": -1}, "features": ["input_ids", "tags"]}
    content = saved(kind) | defaults | keys
    with pytest.raises(error, match=message):
        opened(**content).train.read(np.array([0, 2]))
