"""A mixture is resumed in the middle of an epoch bit for bit."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data import resumed


@pytest.mark.nightly
def test_a_run_on_a_mixture_killed_inside_an_epoch_has_the_same_parameters_after_a_resume(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, rows in {"a": 64, "b": 40}.items():
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        table = pa.table({"x": list(x), "label": (x.sum(1) > 0).astype(np.int32)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=8)
    first = "{name: parquet, path: a.parquet, test: 'train[:8]'}"
    second = "{name: parquet, path: b.parquet, weight: 3, test: 'train[:8]'}"
    options = ["mesh=batch2", "dataset=mixture", f"dataset.parts=[{first}, {second}]", "dataset.standardize=true"]
    resumed.compare(tmp_path, 13, 5, options)
