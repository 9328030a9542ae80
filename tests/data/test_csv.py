"""Tables of text are parsed in little memory, by the types of the whole file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from runner.data import tables
from runner.errors import DataError

_POOLS: list[pa.MemoryPool] = []  # kept: what is freed later, by a thread of Arrow too, is freed into its own pool


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def long_table() -> Path:
    """A table of several blocks."""
    draw = np.random.default_rng(0)
    rows = [f"{x:.2f},{i},{'ab'[i % 2]}" for i, x in enumerate(draw.normal(size=250_000))]
    Path("long.csv").write_text("\n".join(["x,n,kind", *rows, ""]))
    return Path("long.csv")


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """A pool of Arrow's memory that knows its own peak."""
    before = pa.default_memory_pool()
    made = pa.proxy_memory_pool(before)
    _POOLS.append(made)
    pa.set_memory_pool(made)
    yield made
    pa.set_memory_pool(before)


def test_a_table_is_parsed_in_little_more_memory_than_its_arrays_take(pool: pa.MemoryPool) -> None:
    draw, rows = np.random.default_rng(0), 1_000_000
    columns = {
        "x": np.round(draw.normal(size=rows), 2),
        "n": np.arange(rows),
        "kind": np.array(["a", "b"] * (rows // 2)),
    }
    pa.csv.write_csv(pa.table(columns), "large.csv")
    before = pool.max_memory()
    found = tables.read([Path("large.csv")], None)
    assert len(found["x"]) == rows
    # float32, int64 and codes of words are 16 bytes per row, as many as the file has.
    assert pool.max_memory() - before < 2 * Path("large.csv").stat().st_size


@pytest.mark.parametrize(("last", "kind"), [("0.5,1.25,a", "float64"), ("0.5,red,a", "words")])
def test_the_type_of_a_column_depends_on_the_whole_file(long_table: Path, last: str, kind: str) -> None:
    with long_table.open("a") as file:
        file.write(f"{last}\n")
    column = tables.convert_column("n", tables.read([long_table], None)["n"])
    if kind == "words":
        assert column.values[column.codes[-1]] == "red"  # type: ignore[union-attr]
        assert column.values[column.codes[0]] == "0"  # type: ignore[union-attr]
    else:
        assert column[[0, -1]].tolist() == [0.0, 1.25]  # type: ignore[call-overload]


def test_a_line_that_cannot_be_parsed_is_shown_however_late_it_is(long_table: Path) -> None:
    with long_table.open("a") as file:
        file.write("0.5,1\n")
    with pytest.raises(DataError, match=r"Expected 3 columns, got 2: 0\.5,1"):
        tables.read([long_table], None)
