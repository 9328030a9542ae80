"""Layers of `dataset.prepare`: fitted on the train split once, recorded, and applied to every split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config import values
from runner.config.build import build
from runner.config.options import arranged
from runner.config.schema_data import DatasetConfig, PrepareConfig
from runner.data import checks as checks_data
from runner.data import layers, prepare
from runner.data.base import ArraySource, Dataset, Encoding
from runner.data.loading import load
from runner.errors import ConfigError, DataError
from runner.training.checkpoint.manifest import _check_learned
from runner.training.checkpoint.typed import MisfitError

REVIEWS = """review,city,age,rooms,label
"Good, good film!",Rome,20,1,yes
bad film,Oslo,40,2,no
a good one,Rome,60,2,yes
"""
OTHERS = """review,city,age,rooms,label
a zebra film,Lima,100,7,no
"""
TEXT = {"layer": "TextVectorization", "column": "review"}
CITY = {"layer": "StringLookup", "column": "city"}
HASH = {"layer": "Hashing"}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("films").mkdir()
    Path("films/train.csv").write_text(REVIEWS)
    Path("films/test.csv").write_text(OTHERS)


def configured(*steps: dict[str, Any], **keys: Any) -> DatasetConfig:
    content = {"prepare": list(steps)}
    made = []
    for step in arranged("dataset", content)["prepare"]:
        made.append(PrepareConfig(**step))
    config = DatasetConfig(**({"name": "arrays", "path": "films", "test": "test", "prepare": made} | keys))
    values.check(config, "dataset")
    checks_data.check(config)
    return config


def opened(*steps: dict[str, Any], encoding: Encoding | None = None, **keys: Any) -> Dataset:
    return load(configured(*steps, **keys), 0, encoding)


def arrays(dataset: Dataset) -> tuple[dict[str, Any], dict[str, Any]]:
    both = []
    for source in (dataset.train, dataset.test):
        content = source.read(np.arange(source.size))
        both.append({name: array.tolist() for name, array in content.items()})
    return both[0], both[1]


def test_layers_learn_from_the_train_split_alone_and_change_every_split() -> None:
    data = opened(TEXT, CITY, {"layer": "Normalization", "columns": ["age", "rooms"]})
    train, test = arrays(data)
    # By frequency, and of equally frequent tokens the last in the alphabet first.
    assert data.encoding.prepared[0]["state"] == {"vocabulary": ["good", "film", "one", "bad", "a"], "length": 3}
    assert train["review"] == [[2, 2, 3], [5, 3, 0], [6, 2, 4]]
    # zebra and Lima are in the test split only.
    assert test["review"] == [[6, 1, 3]]
    assert (train["city"], test["city"]) == ([1, 2, 1], [0])
    np.testing.assert_allclose(test["age"], [(100 - 40) / np.sqrt(800 / 3)], rtol=1e-6)
    np.testing.assert_allclose(train["rooms"], [-np.sqrt(2), np.sqrt(0.5), np.sqrt(0.5)], rtol=1e-6)
    assert data.specs["review"].dims == ("sequence",)
    assert data.specs["review"].dtype == "int32"
    # The label is a category as before, and prepared columns are neither categories nor standardized.
    assert set(data.encoding.categories) == {"label"}
    assert not opened(
        TEXT, CITY, {"layer": "Normalization", "columns": ["age", "rooms"]}, standardize=True
    ).encoding.mean


def test_a_recorded_run_never_fits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (TEXT, CITY, {"layer": "Discretization", "column": "age", "num_bins": 3})
    data = opened(*steps)
    recorded = Encoding.from_json(json.loads(json.dumps(data.encoding.to_json())))
    assert recorded == data.encoding

    def forbidden(*_: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(layers, "fit", forbidden)
    # Other data, which would give other vocabularies.
    Path("films/train.csv").write_text(OTHERS)
    train, _ = arrays(opened(*steps, encoding=recorded))
    assert train["review"] == [[6, 1, 3]]
    assert train["city"] == [0]
    with pytest.raises(AssertionError, match="fitted again"):
        opened(*steps)


@pytest.mark.parametrize("steps", [(), (TEXT,), (TEXT | {"max_tokens": 9}, CITY), (CITY, TEXT)])
def test_layers_other_than_the_recorded_ones_are_rejected(steps: tuple[dict[str, Any], ...]) -> None:
    recorded = opened(TEXT, CITY).encoding
    with pytest.raises(
        ConfigError, match=r"dataset.prepare=.*must be the recorded run's.*TextVectorization of review"
    ):
        opened(*steps, encoding=recorded)


def test_layers_of_one_array_follow_each_other() -> None:
    data = opened(
        TEXT, CITY, {"layer": "CategoryEncoding", "column": "city", "num_tokens": 3, "output_mode": "one_hot"}
    )
    train, test = arrays(data)
    assert train["city"] == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert test["city"] == [[1, 0, 0]]


@pytest.mark.parametrize("city", [CITY | {"num_oov_indices": 5}, HASH | {"column": "city", "num_bins": 50}], ids=str)
def test_the_file_of_a_run_prepares_raw_values(city: dict[str, Any]) -> None:
    rooms = {"layer": "Hashing", "column": "rooms", "num_bins": 50, "salt": 3}
    data = opened(TEXT, city, {"layer": "Normalization", "column": "age"}, rooms)
    Path(prepare.PREPARATION).write_text(prepare.to_text(data.encoding), "utf-8")
    _check_learned({"encoding": json.loads(json.dumps(data.encoding.to_json()))})
    raw = {"review": ["a zebra film"], "city": ["Lima"], "age": [100], "rooms": [7]}
    applied = prepare.apply(prepare.read(prepare.PREPARATION), raw)
    _, test = arrays(data)
    for name in raw:
        assert applied[name].tolist() == test[name]


def test_a_vocabulary_can_come_from_a_file() -> None:
    Path("words.txt").write_text("film\ngood\n")
    steps = (TEXT | {"vocabulary_file": "words.txt"}, CITY)
    data = opened(*steps)
    assert arrays(data)[0]["review"] == [[3, 3, 2], [1, 2, 0], [1, 3, 1]]
    # A recorded run has the vocabulary, so it doesn't need the file.
    config = configured(*steps)
    Path("words.txt").unlink()
    checks_data.check(config, recorded=True)
    assert arrays(load(config, 0, data.encoding))[0]["review"] == [[3, 3, 2], [1, 2, 0], [1, 3, 1]]


def test_a_large_table_is_cached_without_losing_its_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = arrays(opened(TEXT, CITY))
    monkeypatch.setattr("runner.data.sources.table_cache.MIN_BYTES", 0)
    assert arrays(opened(TEXT, CITY)) == expected
    assert arrays(opened(TEXT, CITY)) == expected
    # The same files without the layer: the strings are categories again.
    assert opened(TEXT).specs["city"].names == ("Lima", "Oslo", "Rome")


def test_an_object_of_examples_is_prepared_example_by_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("my_examples.py").write_text(
        "class Rows:\n"
        "    def __len__(self):\n        return 10\n"
        "    def __getitem__(self, row):\n        return {'x': float(row), 'code': row % 3, 'label': row % 2}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    steps = ({"layer": "Normalization", "column": "x"}, {"layer": "IntegerLookup", "column": "code"})
    data = opened(*steps, name="custom", path=None, target="my_examples.Rows", test="train[8:]", train="train[:8]")
    train, test = arrays(data)
    np.testing.assert_allclose(train["x"], (np.arange(8) - 3.5) / np.arange(8).std(), rtol=1e-6)
    # 0 and 1 are equally frequent, and 2 is rarer.
    assert train["code"] == [2, 1, 3, 2, 1, 3, 2, 1]
    assert test["code"] == [3, 2]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            ({"layer": "TextVectorisation", "column": "review"},),
            r"prepare\[0\].layer=TextVectorisation: .*did you mean",
        ),
        (({"layer": "StringLookup"},), r"prepare\[0\].columns=\[\]: must name"),
        ((CITY | {"columns": ["city"]},), r"prepare\[0\].column=city: can't be combined"),
        ((CITY | {"columns": ["a", "a"], "column": "b"},), "can't be combined"),
        ((TEXT | {"max_token": 3},), r"prepare\[0\].max_token: unknown key"),
        ((TEXT | {"max_tokens": 1},), r"prepare\[0\].max_tokens=1: must be from 3"),
        ((TEXT | {"ngrams": 0},), r"ngrams=0: must be at least 1"),
        ((TEXT | {"split": None},), r"split=null: must be"),
        ((TEXT | {"output_mode": "count", "output_sequence_length": 3},), "output_sequence_length=3: must be null"),
        ((TEXT | {"pad_to_max_tokens": True},), "pad_to_max_tokens=true: needs max_tokens"),
        ((TEXT | {"vocabulary": ["a", "a"]},), "vocabulary=2 tokens: must have each token once"),
        ((TEXT | {"vocabulary": ["a", ""]},), "must not have the mask token"),
        ((TEXT | {"vocabulary": ["a", "b"], "max_tokens": 3},), "more than max_tokens=3"),
        ((TEXT | {"vocabulary_file": "nowhere.txt"},), "vocabulary_file=nowhere.txt: can't be read"),
        ((TEXT | {"vocabulary": ["a"], "output_mode": "tf_idf"},), "output_mode=tf_idf: tf_idf counts documents"),
        ((CITY | {"num_oov_indices": -1},), "num_oov_indices=-1: must be from 0"),
        ((CITY | {"num_oov_indices": 3, "max_tokens": 3},), "max_tokens=3: must be more than the 3 special tokens"),
        ((HASH | {"column": "city"},), r"num_bins=null: must be set"),
        ((HASH | {"column": "city", "num_bins": 0},), "num_bins=0: must be from 1"),
        ((HASH | {"column": "city", "num_bins": 3, "salt": [1]},), "salt=.*must be one integer or two"),
        (
            (HASH | {"column": "city", "num_bins": 3, "mask_value": 1.5},),
            "mask_value=1.5: must be a string, an integer",
        ),
        ((HASH | {"column": "city", "num_bins": 3, "output_mode": "tf_idf"},), "output_mode=tf_idf: must be"),
        (
            (TEXT, HASH | {"column": "city", "num_bins": 3, "mask_value": 1}),
            "must be of the kind of city, which has str",
        ),
        (
            (TEXT, HASH | {"column": "age", "num_bins": 3, "mask_value": ""}),
            "must be of the kind of age, which has num",
        ),
        (({"layer": "Normalization", "column": "age", "mean": [1.0]},), "mean=.*as many numbers as variance"),
        (({"layer": "Discretization", "column": "age"},), "num_bins=null: exactly one"),
        (({"layer": "Discretization", "column": "age", "bin_boundaries": [2, 1]},), "in increasing order"),
        (({"layer": "CategoryEncoding", "column": "rooms"}, CITY, CITY), "reads strings, but city holds numbers"),
        ((TEXT, CITY, {"layer": "Normalization", "column": "rent"}), r"prepare\[2\].columns=rent: unknown array"),
        ((TEXT, {"layer": "Normalization", "column": "label"}), "layer=Normalization: reads numbers, but label has"),
        ((TEXT, {"layer": "StringLookup", "column": "age"}), "layer=StringLookup: reads strings, but age has numbers"),
        ((TEXT, CITY, {"layer": "CategoryEncoding", "column": "review", "num_tokens": 3}), None),
    ],
)
def test_errors_name_the_layer_and_the_fix(steps: tuple[dict[str, Any], ...], message: str | None) -> None:
    if message is None:
        with pytest.raises(DataError, match="CategoryEncoding of review: values from 0 to 6, but num_tokens=3"):
            opened(*steps)
        return
    with pytest.raises(ConfigError, match=message):
        opened(*steps)


def test_an_unknown_string_is_an_error_without_an_index_for_it() -> None:
    with pytest.raises(DataError, match="StringLookup of city: 'Lima' is not in the vocabulary of the train split"):
        opened(TEXT, CITY | {"num_oov_indices": 0})


def test_only_one_of_standardize_and_prepare_may_name_an_array() -> None:
    with pytest.raises(ConfigError, match=r"dataset.standardize=\[age\]: must not name age"):
        opened({"layer": "Normalization", "column": "age"}, standardize=["age"])


def test_an_error_shows_the_layers_of_another_source_as_they_are_typed() -> None:
    with pytest.raises(ConfigError) as error:
        opened(CITY | {"num_oov_indices": 3}, name="digits", path=None)
    assert str(error.value).startswith(
        "dataset.prepare=[{layer:StringLookup,columns:[city],num_oov_indices:3}]: dataset=digits has no such key; "
    )


def test_an_error_of_an_entry_that_is_no_mapping_names_keys_that_can_be_typed() -> None:
    with pytest.raises(ConfigError, match=r"dataset.prepare\[0\]=StringLookup: .*keys layer, columns; write \{layer:"):
        build(DatasetConfig, arranged("dataset", {"prepare": ["StringLookup"]}), "dataset")


@pytest.mark.parametrize(
    "layer",
    [
        3,
        {"layer": "StringLookup", "column": "city", "options": {}},
        {"layer": "StringLookup", "column": "city", "options": {}, "state": {"vocabulary": [1.5]}},
        {"layer": "Normalization", "column": "age", "options": {}, "state": {"mean": ["x"]}},
        {"layer": "TextVectorization", "column": "review", "options": {}, "state": {"length": -1}},
    ],
)
def test_a_checkpoint_with_an_invalid_layer_is_rejected(layer: object) -> None:
    with pytest.raises(MisfitError, match="prepared"):
        _check_learned({"encoding": {"prepared": [layer]}})
    fitted = opened(TEXT, CITY).encoding
    _check_learned({"encoding": json.loads(json.dumps(fitted.to_json()))})


def test_prepared_arrays_are_read_only() -> None:
    source = opened(TEXT, CITY).train
    assert isinstance(source, ArraySource)
    assert not source.arrays["review"].flags.writeable
