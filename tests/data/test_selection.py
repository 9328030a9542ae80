import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySource, ArraySpec, DataSource, FullDataset, Rows
from runner.data.loading import load
from runner.data.selection import Selection, make_dataset
from runner.errors import ConfigError

SPECS = {"x": ArraySpec((2,), "int32")}


class Made(DataSource):
    """A source that makes its examples, as one of files does."""

    specs = SPECS

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size

    def read(self, rows: Rows) -> dict[str, Array]:
        return {"x": np.stack([rows + self.first, -(rows + self.first)], axis=1).astype(np.int32)}


def arrays(first: int, size: int) -> ArraySource:
    return ArraySource(Made(first, size).read(np.arange(size)), SPECS)


def whole(kind: object = arrays, **sizes: int) -> FullDataset:
    starts = np.cumsum([0, *sizes.values()])
    splits = {name: kind(int(start), size) for (name, size), start in zip(sizes.items(), starts, strict=False)}  # type: ignore[operator]
    return FullDataset("a test", "", splits, "digest", "a test")


def held(source: DataSource) -> list[int]:
    return source.read(np.arange(source.size))["x"][:, 0].tolist()


def own(**keys: object) -> DatasetConfig:
    return DatasetConfig(**({"name": "arrays", "test": None} | keys))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [arrays, Made])
@given(size=st.integers(10, 300), holdout=st.floats(0.11, 0.8), seed=st.integers(0, 2**40))
def test_train_validation_and_test_share_no_example_and_leave_none_out(
    kind: object, size: int, holdout: float, seed: int
) -> None:
    data = make_dataset(whole(kind, train=size), own(holdout=holdout), seed)
    assert data.validation is not None
    parts = [held(data.train), held(data.validation), held(data.test)]
    assert sorted(itertools.chain(*parts)) == list(range(size))
    assert all(part == sorted(part) for part in parts)
    assert len(parts[2]) == round(size * 0.2)
    assert len(parts[1]) == round((size - len(parts[2])) * holdout)
    again = make_dataset(whole(kind, train=size), own(holdout=holdout), seed)
    assert [held(again.train), held(again.test)] == [parts[0], parts[2]]


@pytest.mark.parametrize(
    ("sizes", "keys", "sizes_used"),
    [
        ({"train": 100, "test": 9}, {}, (90, 10, 9)),
        ({"train": 100}, {}, (72, 8, 20)),
        ({"train": 100, "validation": 7, "test": 9}, {}, (100, 7, 9)),
        ({"train": 100, "extra": 7, "test": 9}, {"validation": "extra"}, (100, 7, 9)),
        ({"train": 100, "test": 9}, {"holdout": 0.0}, (100, None, 9)),
        ({"train": 100, "test": 9}, {"batch_size": 91}, (100, None, 9)),  # no batch would be left
        ({"train": 4, "test": 9}, {"batch_size": 1}, (4, None, 9)),
        ({"train": 100, "validation": 7, "test": 9}, {"name": "emnist/letters"}, (100, 7, 9)),
        ({"train": 100, "test": 9}, {"name": "mixture"}, (100, None, 9)),
    ],
)
def test_without_a_validation_split_a_tenth_of_train_becomes_one(
    sizes: dict[str, int], keys: dict[str, object], sizes_used: tuple[int | None, ...]
) -> None:
    data = make_dataset(whole(**sizes), own(**{"holdout": None, "batch_size": 64} | keys), 0)
    validation = None if data.validation is None else data.validation.size
    assert (data.train.size, validation, data.test.size) == sizes_used


def test_the_datas_own_splits_are_used_and_described() -> None:
    data = make_dataset(whole(train=20, validation=5, test=6), own(), 0)
    assert data.validation is not None
    assert (held(data.train), held(data.validation), held(data.test)) == (
        list(range(20)), list(range(20, 25)), list(range(25, 31)),
    )  # fmt: skip
    assert data.selection == {"train": "train", "validation": "validation", "test": "test"}
    assert data.selecting is data.validation


def test_a_published_dataset_has_no_validation_split_unless_one_is_asked_for() -> None:
    config = DatasetConfig(name="some_builder")
    data = make_dataset(whole(train=20, validation=5, test=6), config, 0)
    assert data.validation is None
    assert data.selecting_name == "test"


@pytest.mark.parametrize("kind", [arrays, Made])
def test_sums_of_ranges_are_read_in_their_order(kind: object) -> None:
    config = own(train="test[2:4]+train[-3:]+validation[:1]", test="test[:2]")
    data = make_dataset(whole(kind, train=10, validation=4, test=5), config, 0)
    assert held(data.train) == [16, 17, 7, 8, 9, 10]
    rows = np.array([5, 0, 0, 3])
    assert data.train.read(rows)["x"][:, 1].tolist() == [-10, -16, -16, -8]
    if isinstance(data.train, Selection):
        assert data.train.column("x") is None
        source, row = data.train.locate(5)
        assert source.read(np.array([row]))["x"][0, 0] == 10


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"train": "trian"}, "dataset.train=trian: there is no split trian, the splits are train"),
        ({"train": "train[5:5]"}, "selects nothing"),
        ({"train": "train[:11]"}, "dataset.train=train[:11]: train has 10 examples, so the bound 11 is outside"),
        ({"train": "train[:2]", "test": "train[2:]", "holdout": 0.1}, "dataset.holdout=0.1: can't split 2 examples"),
        ({"train": "train[:1]"}, "dataset.test=null: can't split 1 examples"),
    ],
)
def test_splits_that_would_be_empty_are_rejected(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_dataset(whole(train=10), own(**keys), 0)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_can_not_be_written_into_by_who_reads_them(tmp_path: Path) -> None:
    data = load(DatasetConfig(name="digits", holdout=0.1, data_dir=str(tmp_path)), seed=3)
    assert data.validation is not None
    assert (data.train.size, data.validation.size, data.test.size) == (1293, 144, 360)
    for source in (data.train, data.validation, data.test):
        assert isinstance(source, ArraySource)
        assert not any(array.flags.writeable for array in source.arrays.values())


def test_an_evaluation_may_select_a_range_of_the_examples_that_are_held_out() -> None:
    config = own(holdout=0.1)
    data = make_dataset(whole(train=100), config, 3)
    assert data.validation is not None
    parts = {
        "test[:8]": held(data.test)[:8],
        "validation[2:]+test[:1]": held(data.validation)[2:] + held(data.test)[:1],
    }
    for evaluated, rows in parts.items():
        chosen = make_dataset(whole(train=100), config, 3, evaluated)
        assert held(chosen.test) == rows
        assert held(chosen.train) == held(data.train)
    # A split of the source's own is that one, and `all` counts no example twice.
    assert held(make_dataset(whole(train=9, test=3), own(), 0, "test[:2]").test) == [9, 10]
    assert len(held(make_dataset(whole(train=100), config, 3, "all").test)) == 100


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"test": "nosuch"}, "set dataset.test=null, which holds out a fifth of train"),
        ({"validation": "nosuch"}, "set dataset.holdout=0.1, which holds out a tenth of train"),
        ({"train": "train[:2]", "test": "train[2:]", "holdout": 0.1}, "use more examples, or set dataset.holdout=0.5"),
    ],
)
def test_no_error_suggests_to_evaluate_training_examples(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_dataset(whole(train=10), own(**keys), 0)
    assert said in str(caught.value)
    with pytest.raises(ConfigError, match=r"the splits are train, test; set dataset.test=test"):
        make_dataset(whole(train=100), own(), 0, "tset[:8]")
