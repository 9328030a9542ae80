"""Tables of text are parsed once, in little memory; what was parsed is bounded, the user's own, and never wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from runner.config.schema_data import DatasetConfig
from runner.data import tables
from runner.data.base import Encoding, FullDataset
from runner.data.sources import arrays, table_cache
from runner.errors import DataError

_POOLS: list[pa.MemoryPool] = []  # kept: what is freed later, by a thread of Arrow too, is freed into its own pool
TABLE = "x,kind,label\n0.5,b,1\n1.5,a,0\n-2.25,b,1\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of parsed tables, of which the smallest are kept too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table_cache, "MIN_BYTES", 0)
    return tmp_path / "cache" / "runner" / "tables"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were parsed."""
    names: list[str] = []
    real = tables.read

    def noted(path: Path, *rest: object) -> object:
        names.append(path.name)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "read", noted)
    return names


def opened(path: str = "a.csv", encoding: Encoding | None = None, **keys: object) -> FullDataset:
    return arrays.load(DatasetConfig(**{"name": "arrays", "path": path} | keys), encoding)  # type: ignore[arg-type]


def values(whole: FullDataset) -> dict[str, dict[str, tuple[str, list[float]]]]:
    return {
        split: {name: (str(array.dtype), array.tolist()) for name, array in source.arrays.items()}  # type: ignore[attr-defined]
        for split, source in whole.splits.items()
    }


def entries(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.is_dir()}


def test_a_second_start_maps_what_the_first_one_parsed(read: list[str]) -> None:
    Path("a.csv").write_text(TABLE)
    first = opened()
    second = opened()
    assert read == ["a.csv"]
    wanted = {"x": ("float32", [0.5, 1.5, -2.25]), "kind": ("int32", [1, 0, 1]), "label": ("int32", [1, 0, 1])}
    assert values(first) == values(second) == {"train": wanted}
    assert (first.digest, first.encoding, first.name) == (second.digest, second.encoding, second.name)
    assert first.splits["train"].specs == second.splits["train"].specs
    assert second.encoding is not None
    assert second.encoding.categories == {"kind": ("a", "b")}
    assert all(isinstance(array, np.memmap) for array in second.splits["train"].arrays.values())  # type: ignore[attr-defined]


def test_other_content_columns_categories_and_names_are_parsed_on_their_own(read: list[str]) -> None:
    Path("a.csv").write_text(TABLE)
    opened()
    assert set(values(opened(features=["x"]))["train"]) == {"x"}
    known = Encoding({"kind": ("a", "b", "c")}, mean={"x": (1.0,)})
    again = opened(encoding=known)
    assert again.encoding == known
    Path("a.csv").write_text(TABLE.replace("0.5", "0.75"))
    assert values(opened())["train"]["x"][1] == [0.75, 1.5, -2.25]
    assert read == ["a.csv"] * 4
    for name in ("train", "val"):
        Path("splits", name).mkdir(parents=True)
        Path("splits", name, "part.csv").write_text(TABLE)
    assert list(opened("splits").splits) == list(opened("splits").splits) == ["train", "validation"]
    assert len(read) == 6


@pytest.mark.parametrize("damage", ["cut", "swapped", "meta", "gone"])
def test_what_is_damaged_is_parsed_again(cache: Path, read: list[str], damage: str) -> None:
    Path("a.csv").write_text(TABLE)
    wanted = values(opened())
    (place,) = (cache / name for name in entries(cache))
    if damage == "cut":
        os.truncate(place / "0.npy", 100)
    elif damage == "swapped":
        (place / "1.npy").replace(place / "0.npy")
    elif damage == "meta":
        (place / "meta.json").write_text('{"format": 1, "splits": []}')
    else:
        (place / "2.npy").unlink()
    assert values(opened()) == values(opened()) == wanted
    assert read == ["a.csv"] * 2


@pytest.mark.skipif(os.name == "nt", reason="access is not by bits there")
def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(cache: Path, read: list[str]) -> None:
    Path("a.csv").write_text(TABLE)
    wanted = values(opened())
    assert cache.stat().st_mode & 0o077 == 0
    cache.chmod(0o777)
    (meta,) = cache.glob("*/meta.json")
    before = meta.stat().st_mtime_ns
    assert values(opened()) == wanted
    assert read == ["a.csv"] * 2
    assert meta.stat().st_mtime_ns == before
    cache.rename(cache.with_name("elsewhere"))
    cache.with_name("elsewhere").chmod(0o700)
    cache.symlink_to(cache.with_name("elsewhere"))
    assert values(opened()) == wanted
    assert len(read) == 3


def test_the_folder_is_bounded_and_only_what_a_run_wrote_is_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_cache, "MAX_BYTES", 1000)  # an entry of three columns takes 420 with their heads
    names: list[str] = []
    for number in range(4):
        Path("a.csv").write_text(TABLE.replace("0.5", str(number)))
        opened()
        (name,) = entries(cache) - set(names)
        names.append(name)
        os.utime(cache / name / "meta.json", (number, number))
        if number == 0:
            (cache / name / "notes.txt").write_text("mine")
    assert {path.name for path in cache.glob("*") if (path / "meta.json").exists()} == set(names[-2:])
    assert (cache / names[0] / "notes.txt").read_text() == "mine"


def test_a_table_larger_than_the_bound_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "MAX_BYTES", 20)
    Path("a.csv").write_text(TABLE)
    assert values(opened())["train"]["x"][1] == [0.5, 1.5, -2.25]
    assert entries(cache) == set()


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path, read: list[str]) -> None:
    (tmp_path / "cache").write_text("a file")
    Path("a.csv").write_text(TABLE)
    assert values(opened()) == values(opened())
    assert read == ["a.csv"] * 2


def test_a_rejected_table_is_not_cached(cache: Path) -> None:
    Path("a.csv").write_text("x,label\n1.0,0\n,1\n")
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.csv, x: row 2 is missing"):
            opened()
    assert entries(cache) == set()


def test_a_file_that_changes_while_it_is_read_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv").write_text(TABLE)
    real = tables.read

    def changed(path: Path, *rest: object) -> object:
        path.write_text(TABLE.replace("0.5", "0.75"))
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "read", changed)
    opened()
    assert entries(cache) == set()


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
    found = tables.read(Path("large.csv"))
    assert len(found["x"]) == rows
    # float32, int64 and codes of words are 16 bytes per row, as many as the file has.
    assert pool.max_memory() - before < 2 * Path("large.csv").stat().st_size


@pytest.mark.parametrize(("last", "kind"), [("0.5,1.25,a", "float64"), ("0.5,red,a", "words")])
def test_the_type_of_a_column_depends_on_the_whole_file(long_table: Path, last: str, kind: str) -> None:
    with long_table.open("a") as file:
        file.write(f"{last}\n")
    column = tables.read(long_table)["n"]
    if kind == "words":
        assert column.values[column.codes[-1]] == "red"  # type: ignore[union-attr]
        assert column.values[column.codes[0]] == "0"  # type: ignore[union-attr]
    else:
        assert column[[0, -1]].tolist() == [0.0, 1.25]  # type: ignore[index,union-attr]


def test_a_line_that_cannot_be_parsed_is_shown_however_late_it_is(long_table: Path) -> None:
    with long_table.open("a") as file:
        file.write("0.5,1\n")
    with pytest.raises(DataError, match=r"Expected 3 columns, got 2: 0\.5,1"):
        tables.read(long_table)
