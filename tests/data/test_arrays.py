from pathlib import Path

import numpy as np
import pytest

from runner.data.base import ArraySource, Dataset, Encoding
from runner.errors import ConfigError, DataError
from tests.data import conftest

HOUSES = "rooms,area (m2),kind,price,sold\n2,50.5,flat,100,true\n4,120,house,300.5,false\n3,70,flat,150,true\n"


pytestmark = pytest.mark.usefixtures("inside")


def opened(path: str, encoding: Encoding | None = None, **keys: object) -> Dataset:
    return conftest.opened(encoding, **({"name": "arrays", "path": path, "test": "train"} | keys))


def read(path: str, **keys: object) -> dict[str, np.ndarray]:
    source = opened(path, **keys).train
    assert isinstance(source, ArraySource)
    return dict(source.arrays)


def test_columns_of_a_table_are_numbers_truths_and_sorted_categories() -> None:
    Path("houses.csv").write_text(HOUSES)
    data = opened("houses.csv")
    assert {name: (spec.shape, spec.dtype, spec.names) for name, spec in data.specs.items()} == {
        "rooms": ((), "int32", ()),
        "area_m2": ((), "float32", ()),
        "kind": ((), "int32", ("flat", "house")),
        "price": ((), "float32", ()),
        "sold": ((), "bool", ()),
    }
    assert {name: array.tolist() for name, array in read("houses.csv").items()} == {
        "rooms": [2, 4, 3],
        "area_m2": [50.5, 120.0, 70.0],
        "kind": [0, 1, 0],
        "price": [100.0, 300.5, 150.0],
        "sold": [True, False, True],
    }
    assert (data.name, data.source) == ("houses.csv", "houses.csv")


def test_arrays_of_bytes_with_the_shape_of_images_are_images() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "gray": rng.integers(0, 256, (6, 5, 4), np.uint8),
        "color": rng.integers(0, 256, (6, 5, 4, 3), np.uint8),
        "scaled": rng.random((6, 5, 4, 1), np.float32),
        "table": rng.integers(0, 256, (6, 5), np.uint8),
        "cube": rng.random((6, 5, 4, 7)),
    }
    np.savez("a.npz", **arrays)
    data = opened("a.npz")
    assert [name for name, spec in data.specs.items() if spec.is_image] == ["gray", "color", "scaled"]
    assert {name: (spec.shape, spec.dtype) for name, spec in data.specs.items()} == {
        "gray": ((5, 4, 1), "uint8"),
        "color": ((5, 4, 3), "uint8"),
        "scaled": ((5, 4, 1), "float32"),
        "table": ((5,), "int32"),
        "cube": ((5, 4, 7), "float32"),
    }
    found = read("a.npz")
    for name, array in arrays.items():
        assert np.array_equal(found[name].reshape(array.shape), array.astype(found[name].dtype)), name


@pytest.mark.parametrize("inner", ["{}.csv", "{}/part.csv"])
def test_files_and_folders_named_as_splits_are_splits_with_the_same_categories(inner: str) -> None:
    for split, kinds in {"train": "bcb", "val": "ab", "test": "cc"}.items():
        path = Path("data", inner.format(split))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["kind,n", *(f"{kind},{place}" for place, kind in enumerate(kinds))]))
    data = opened("data", test=None)
    assert data.validation is not None
    assert data.specs["kind"].names == ("a", "b", "c")
    found = [split.read(np.arange(split.size))["kind"].tolist() for split in (data.train, data.validation, data.test)]
    assert found == [[1, 2, 1], [0, 1], [2, 2]]


def test_files_of_one_split_are_joined_row_by_row_and_npy_files_array_by_array() -> None:
    folder = Path("data")
    folder.mkdir()
    (folder / "b.csv").write_text("kind,n\nx,3\n")
    (folder / "a.csv").write_text("kind,n\ny,1\nx,2\n")
    found = read("data")
    assert found["n"].tolist() == [1, 2, 3]
    assert found["kind"].tolist() == [1, 0, 0]
    np.save(folder / "vector.npy", np.arange(6.0).reshape(3, 2))
    with pytest.raises(DataError, match="data has tables and arrays; store all in one form"):
        read("data")
    for name in ("a.csv", "b.csv"):
        (folder / name).unlink()
    np.savez(folder / "b.npz", n=[3])
    np.savez(folder / "a.npz", n=[1, 2])
    assert {name: array.tolist() for name, array in read("data").items()} == {
        "n": [1, 2, 3],
        "vector": [[0, 1], [2, 3], [4, 5]],
    }


def test_columns_are_chosen_by_name_and_what_is_left_out_may_hold_anything() -> None:
    Path("a.csv").write_text("id,day,a b,n\nx1,2020-01-01,1,\nx2,2020-01-02,2,\n")
    assert read("a.csv", features=["a b"])["a_b"].tolist() == [1, 2]
    Path("years.csv").write_text("2020,note,b\n1,x;y,3\n2,,4\n")
    for name in ("2020", "_2020"):
        assert {key: array.tolist() for key, array in read("years.csv", features=[name]).items()} == {"_2020": [1, 2]}
    with pytest.raises(ConfigError, match=r"features=a_c: unknown column .*id, day, a b, n.; did you mean a_b"):
        opened("a.csv", features=["a_c"])


def test_other_data_is_read_with_the_categories_of_the_run_and_unknown_ones_are_rejected() -> None:
    Path("a.csv").write_text("kind\nb\nc\na\n")
    Path("b.csv").write_text("kind\nc\nb\n")
    Path("c.csv").write_text("kind\nc\nd\n")
    known = Encoding.from_json(opened("a.csv").encoding.to_json())
    assert opened("b.csv", known).train.read(np.arange(2))["kind"].tolist() == [2, 1]
    with pytest.raises(DataError, match=r"c\.csv, row 2, kind is 'd', which is not a category of the run .a, b, c"):
        opened("c.csv", known)
    Path("d.csv").write_text("kind\n0\n1\n")
    with pytest.raises(DataError, match=r"d\.csv, kind has numbers, but the run's data had strings: a, b, c"):
        opened("d.csv", known)


BAD = {
    "missing.csv": ("a,b\n1,2\n3,\n", "missing.csv, row 2, b is missing"),
    "word.csv": ("a,b\n1,2\n3,x\n", "word.csv, b has the string 'x', but other rows are numbers"),
    "empty_word.csv": ("a,b\nx,2\n,3\ny,3\n", "empty_word.csv, a: row 2 is missing"),
    "headless.csv": ("1,2\n3,4\n", "has numbers in its first line"),
    "large.csv": (
        "n\n3000000000\n",
        "large.csv, n has integers outside the int32 range used on devices; store ids as strings",
    ),
    "twice.csv": ("n,n\n1,2\n", "two columns are called 'n'"),
    "semicolons.csv": ("a;b\n1;2\n", "semicolons.csv uses ';' as its delimiter; save it as comma-separated"),
    "weight.csv": ("weight_\n1\n", "'weight_', which is read as 'weight', is a reserved name; rename that"),
    "text.csv": (
        "t\n" + "\n".join(f"word{row}" for row in range(30)),
        "30 distinct strings in 30 rows and looks like",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_unusable_values_of_a_table_are_named_by_file_row_and_column(name: str) -> None:
    content, said = BAD[name]
    Path(name).write_text(content)
    with pytest.raises(DataError) as caught:
        opened(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


ARRAYS = {
    "unequal": ({"a": np.zeros(3), "b": np.zeros(4)}, "a has 3 examples and b has 4"),
    "nan": ({"a": np.array([[1, 2], [3, np.nan]])}, r"a: row 2, column 1 is missing \(NaN\)"),
    "deep": ({"a": np.where(np.arange(8).reshape(2, 2, 2) == 7, np.inf, 0)}, r"a: row 2, entry \[1, 1\] is inf"),
    "single": ({"a": np.float64(1)}, "a is a single value"),
    "words": ({"a": np.array([["x", "y"]])}, "a has strings in 2 dims"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_unusable_values_of_an_archive_are_named_by_their_place(name: str) -> None:
    arrays, said = ARRAYS[name]
    np.savez(f"{name}.npz", **arrays)
    with pytest.raises(DataError, match=said):
        opened(f"{name}.npz")


def test_a_truncated_file_or_one_of_another_kind_is_named() -> None:
    np.savez("whole.npz", a=np.arange(1000))
    whole = Path("whole.npz").read_bytes()
    np.save("array.npy", np.arange(3))

    for name, content, said in (
        ("short.npz", whole[:-100], "short.npz can't be read: File is not a zip file"),
        ("damaged.npz", whole[:200] + bytes(50) + whole[250:], "damaged.npz can't be read: Bad CRC-32"),
        ("array.npz", Path("array.npy").read_bytes(), "array.npz is not a .npz archive; save it with numpy.savez"),
        ("archive.npy", whole, "archive.npy is not an array; save it with numpy.save"),
        ("nothing.parquet", b"", "nothing.parquet can't be read: "),
    ):
        Path(name).write_bytes(content)
        with pytest.raises(DataError) as caught:
            opened(name)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_python_objects_in_a_file_are_rejected_and_not_unpickled(tmp_path: Path) -> None:
    class Mine:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (tmp_path / "executed",)

    np.save("a.npy", np.array([Mine()], object), allow_pickle=True)
    np.savez("a.npz", a=np.array([Mine()], object))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataError, match="Python objects, which are never unpickled"):
            opened(name)
    assert not (tmp_path / "executed").exists()


def test_a_large_array_of_the_right_type_stays_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("x.npy", np.ones((50, 2), np.float32))
    monkeypatch.setattr("runner.data.selection.RAM_BYTES", 100)
    assert isinstance(read("x.npy")["x"], np.memmap)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"path": "huoses.csv"},
            "/huoses.csv does not exist, but must be a .npz, .npy, .csv or .parquet file.*; did you mean houses.csv",
        ),
        ({"path": "rooms/x.csv"}, "; set dataset.path to an existing file or folder$"),
        ({"path": None}, "dataset.path=null: needs a .npz"),
        ({"path": "notes.txt"}, "dataset.path=notes.txt: must be a .npz"),
        ({"path": "houses.csv", "holdout": 1.0}, "dataset.holdout=1.0:"),
        ({"path": "houses.csv", "holdout": 0.1, "validation": "train"}, "must be 0 with a validation split"),
        ({"path": "houses.csv", "standardize": 3}, "dataset.standardize=3:"),
        ({"path": "houses.csv", "features": []}, r"dataset.features=\[\]:"),
        ({"path": "houses.csv", "standardize": ["prise"]}, "dataset.standardize=prise: .* rooms, area_m2"),
    ],
)
def test_keys_that_can_not_work_are_rejected_in_one_line(keys: dict[str, object], said: str) -> None:
    Path("houses.csv").write_text(HOUSES)
    Path("notes.txt").write_text("")
    with pytest.raises(ConfigError, match=said) as caught:
        opened(**keys)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
