from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import checks as checks_data
from runner.data.base import ArraySource, Dataset, ExampleSource
from runner.data.loading import load
from runner.errors import ConfigError, DataError
from tests import forks
from tests.nightly import nightly_except

MODULE = """
import numpy as np

class Pairs:
    def __init__(self, size=30, shape=(8, 8, 3)):
        self.size, self.shape = size, shape

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        return {"image": np.full(self.shape, row, np.uint8), "vector": [row, 0.5], "label": row % 3}

class Tuples(Pairs):
    def __getitem__(self, row):
        return np.full(4, row, np.float64), row % 2

class Triples(Pairs):
    def __getitem__(self, row):
        return np.full(4, row), True, row % 2

class Nested(Pairs):
    def __getitem__(self, row):
        return {"a": row, "b": 1.5}, row % 2

class Broken(Pairs):
    def __getitem__(self, row):
        if row == 3:
            raise OSError("no such file: 3.png")
        if row == 4:
            return {"image": np.zeros((8, 9, 3), np.uint8), "vector": [0, 0.5], "label": 0}
        if row == 5:
            return {"image": np.zeros((8, 8, 3), np.uint8), "label": 0}
        if row == 6:
            return {"image": np.zeros((8, 8, 3), np.uint8), "vector": [0, np.nan], "label": 0}
        return super().__getitem__(row)

class Words(Pairs):
    def __getitem__(self, row):
        return {"x": 1.0, "label": "cat"}

def table(size=20):
    return {"x": np.ones((size, 4)), "label": ["no", "yes"] * (size // 2)}

def splits():
    return {"test": Pairs(10), "train": Pairs(20), "validation": Pairs(5)}

def tables():
    return {"train": table(20), "test": table(4)}

def mixed():
    return {"train": table(20), "test": Pairs(4)}

def unlike():
    return {"train": Pairs(20), "test": Pairs(4, (4, 4, 3))}

def pair():
    return np.ones((40, 2)), np.arange(40)

def pairs():
    return tuple(({"a": np.ones((size, 2)), "b": np.zeros(size)}, np.arange(size)) for size in (40, 8))

def generator():
    yield np.ones((4, 2)), np.ones(4)

def frame():
    import pandas
    return pandas.DataFrame({"x": np.ones(20), "label": table()["label"]})

def columns():
    return {name: column for name, column in frame().items()}

def nothing_in_it():
    return {"x": np.ones(3), "label": None}

def lists():
    return {"train": [({"x": row}, row % 2) for row in range(6)], "test": [{"x": 1, "label": 0}]}

def batches():
    return [(np.full((size, 3), size), np.arange(size)) for size in (8, 8, 4)]

def equal_batches():
    return {"train": [(np.ones((8, 3)), np.arange(8)), (np.ones((8, 3)), np.arange(8))], "test": table(4)}

def weighted_batches():
    return [(np.ones((size, 3)), np.arange(size), np.ones(size)) for size in (8, 4)]

class Own:  # of batches
    def __init__(self, sizes=(8, 8, 8), **names):
        self.sizes = sizes
        vars(self).update(names)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, number):
        size = self.sizes[number]
        return np.full((size, 3), number), np.arange(size)

class Named(Own):
    def __getitem__(self, number):
        return dict(zip(("x", "label"), super().__getitem__(number)))

class Masks(Own):
    def __getitem__(self, number):
        return np.full((8, 4, 3), number), np.ones((8, 4), int)

def examples():
    return [(np.full(4, row), np.ones(4)) for row in range(6)]

def objects():
    return {"x": np.array([1.0, "a", None], object)}

def ragged():
    return {"x": [[1, 2], [3]], "label": [0, 1]}

def raising():
    raise OSError("no disk")
"""


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Gives each test a module of its own name, so that none is imported from another's folder."""
    name = f"own_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def opened(module: str, name: str, /, **keys: object) -> Dataset:
    keys = {"name": "custom", "target": f"{module}.{name}", "test": "train"} | keys
    config = DatasetConfig(**keys)  # type: ignore[arg-type]
    checks_data.check(config)
    return load(config)


def test_an_object_is_read_by_index_and_keeps_the_shape_and_type_of_its_first_example(inside: str) -> None:
    data = opened(inside, "Pairs", options={"size": 12})
    assert {name: (spec.shape, spec.dtype) for name, spec in data.specs.items()} == {
        "image": ((8, 8, 3), "uint8"),
        "vector": ((2,), "float32"),
        "label": ((), "int32"),
    }
    assert data.specs["image"].is_image
    assert isinstance(data.train, ExampleSource)
    found = data.train.read(np.array([7, 0, 7]))
    assert found["image"][:, 0, 0, 0].tolist() == [7, 0, 7]
    assert found["vector"].tolist() == [[7, 0.5], [0, 0.5], [7, 0.5]]
    assert found["label"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("Tuples", {"x": [5.0, 5.0, 5.0, 5.0], "label": 1}),
        ("Triples", {"x0": [5, 5, 5, 5], "x1": True, "label": 1}),
        ("Nested", {"a": 5, "b": 1.5, "label": 1}),
    ],
)
def test_the_values_of_a_tuple_are_named_and_its_last_is_the_label(
    inside: str, name: str, row: dict[str, object]
) -> None:
    found = opened(inside, name).train.read(np.array([5]))
    assert {key: array[0].tolist() for key, array in found.items()} == row
    assert list(found) == list(row)


def test_arrays_by_name_lie_in_memory_and_words_become_categories(inside: str) -> None:
    data = opened(inside, "table")
    assert isinstance(data.train, ArraySource)
    assert data.specs["label"].names == ("no", "yes")
    assert data.train.arrays["label"].tolist() == [0, 1] * 10
    assert data.train.arrays["x"].dtype == np.float32


def test_splits_come_by_name(inside: str) -> None:
    data = opened(inside, "splits", test=None)
    assert data.validation is not None
    assert (data.train.size, data.validation.size, data.test.size) == (20, 5, 10)
    tables = opened(inside, "tables", test=None)
    assert (tables.train.size, tables.validation, tables.test.size) == (20, None, 4)


def test_the_digest_is_of_arrays_where_there_are_some_and_else_of_code_and_options(
    inside: str, tmp_path: Path
) -> None:
    first = opened(inside, "Pairs").digest
    assert opened(inside, "Pairs").digest == first
    assert opened(inside, "Pairs", options={"size": 31}).digest != first
    table = opened(inside, "table").digest
    assert opened(inside, "table", options={"size": 22}).digest != table
    module = tmp_path / f"{inside}.py"
    module.write_text(module.read_text() + "# changed\n")
    assert opened(inside, "Pairs").digest != first
    assert opened(inside, "table").digest == table


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (3, r"\.Broken: example 3 failed: OSError: no such file: 3\.png"),
        (4, r"\.Broken: example 4: array image is uint8 \[8, 9, 3\], but uint8 \[8, 8, 3\] in the first example"),
        (5, r"\.Broken: example 5: array vector is missing"),
        (6, r"\.Broken: example 6, vector: row 1 column 1 is missing|example 6, vector: row 1, column 1 is missing"),
    ],
)
def test_a_later_example_that_differs_is_named_by_its_index(inside: str, row: int, said: str) -> None:
    train = opened(inside, "Broken").train
    train.read(np.array([0, 1, 2]))
    with pytest.raises(DataError, match=said) as caught:
        train.read(np.array([row]))
    assert "\n" not in str(caught.value)


def test_pairs_of_arrays_are_inputs_and_labels_as_in_fit(inside: str) -> None:
    data = opened(inside, "pair")
    assert {name: spec.shape for name, spec in data.specs.items()} == {"x": (2,), "label": ()}
    both = load(DatasetConfig("custom", target=f"{inside}.pairs"))
    assert list(both.specs) == ["a", "b", "label"]
    assert both.test is not None
    assert (both.train.size, both.test.size) == (40, 8)


OF_KERAS = """
import sys, types
import numpy as np
from importlib import import_module
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.errors import DataError
from runner.data.loading import load

module = sys.modules["of_keras"] = types.ModuleType("of_keras")
x, y = np.arange(40, dtype="float32").reshape(20, 2), np.arange(20)
if sys.argv[1] == "tf_keras":
    import tensorflow as tf
    import tf_keras
    base = tf_keras.utils.Sequence
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    module.batched, module.single = lambda: whole.batch(8), lambda: whole
    module.endless = lambda: whole.repeat()
else:
    import keras
    base = keras.utils.PyDataset

class Batches(base):
    weights = ()
    def __len__(self):
        return 3
    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return x[rows], y[rows], *self.weights

module.Batches = Batches
module.Weighted = type("Weighted", (Batches,), {"weights": (y,)})
if sys.argv[1] == "keras":
    without = {"__getitem__": Batches.__getitem__, "weights": ()}
    module.Counted = type("Counted", (base,), {**without, "num_batches": 3})
    module.endless = type("Endless", (base,), {**without, "num_batches": None})
names = [name for name in ("Batches", "Counted", "batched", "single") if hasattr(module, name)]
for name in names:
    train = load(DatasetConfig("custom", target=f"of_keras.{name}", test="train")).train
    found = train.read(np.arange(20))
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["label"], y)
for name in ("Weighted", "endless"):
    if hasattr(module, name):
        try:
            load(DatasetConfig("custom", target=f"of_keras.{name}", test="train"))
        except DataError as error:
            print(error)
"""


def test_a_list_of_batches_whose_last_is_shorter_is_read_as_examples(inside: str) -> None:
    data = opened(inside, "batches")
    assert data.train is not None
    found = data.train.read(np.arange(20))
    assert found["x"].tolist() == [[8] * 3] * 16 + [[4] * 3] * 4
    assert found["label"].tolist() == [*range(8), *range(8), *range(4)]
    assert opened(inside, "examples").specs["x"].shape == (4,)


@pytest.mark.parametrize("keys", [{"sizes": [8, 8, 4]}, {"batch_size": 8}])
def test_batches_of_an_own_class_are_read_as_examples_if_they_can_be_told(
    inside: str, keys: dict[str, object]
) -> None:
    train = opened(inside, "Own", options=keys).train
    found = train.read(np.arange(train.size))
    assert found["x"].tolist() == [[0] * 3] * 8 + [[1] * 3] * 8 + [[2] * 3] * (train.size - 16)
    assert found["label"].tolist() == [*range(8), *range(8), *range(train.size - 16)]


def test_entries_that_may_be_batches_or_examples_are_rejected_where_an_example_has_one_target(inside: str) -> None:
    said = r"Own: its entries may be batches or examples \(x \[8, 3\], label \[8\]\); join"
    with pytest.raises(DataError, match=f"^{inside}.{said}"):
        opened(inside, "Own")
    parts = [{"name": "custom", "_target_": f"{inside}.{name}"} for name in ("Named", "Own")]
    with pytest.raises(DataError, match=rf"^dataset.parts\[1\], {inside}.{said}"):
        load(DatasetConfig("mixture", parts=parts))
    config = DatasetConfig("custom", target=f"{inside}.Own", test="train")
    assert load(config, task=TaskConfig("positions")).specs["label"].shape == (8,)
    for name in ("Named", "Masks"):
        assert opened(inside, name).specs["label"].shape[0] == 8


@pytest.mark.parametrize("keras", nightly_except(["keras"], ["keras", "tf_keras"]))
def test_the_batches_of_kerass_datasets_are_read_as_examples(keras: str) -> None:
    done = forks.python("-c", OF_KERAS, keras, library=forks.OF_KERAS[keras])
    assert "batch 1 has 3 entries, and must be (x, y) or arrays by name; return sample weights by name" in done.stdout
    assert "endless: its number of batches is unknown (TypeError: " in done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixed", "one split is arrays and the other an object"),
        ("unlike", r"split test: array image is uint8 \[4, 4, 3\], but uint8 \[8, 8, 3\] in"),
        ("equal_batches", r"may be batches or examples \(x \[8, 3\], label \[8\]\); join batches"),
        ("weighted_batches", r"batch 1 has 3 entries, and must be \(x, y\)"),
        ("raising", r"raising failed: OSError: no disk"),
        ("Words", "label is the string 'cat'; return a number for each string"),
        ("objects", "x has Python objects"),
        ("ragged", r"x can't be converted to an array \(ValueError: .*; pad lists .* keras.utils.pad_sequences does"),
    ],
)
def test_unusable_data_is_an_error_in_one_line(inside: str, name: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        opened(inside, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("lod", {}, "has no 'lod'; write it as"),
        ("generator", {}, r"must return arrays by name, .* not generator; read streams and loaders to their end"),
        ("frame", {}, r"must return arrays by name, .* not DataFrame"),
        ("nothing_in_it", {}, r"must return arrays by name, .* not dict; "),
        (
            "table",
            {"options": {"sise": 3}},
            r"dataset\.sise: unknown option \(own_\d+\.table takes size\); did you mean size",
        ),
    ],
)
def test_a_target_that_can_not_be_used_is_rejected(inside: str, name: str, keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        opened(inside, name, **keys)
    assert "\n" not in str(caught.value)
