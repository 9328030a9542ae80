"""What the data command says of a dataset, and what it draws."""

import json
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import ArraySource, ArraySpec, Dataset
from runner.data.contents import Table, cell, examples, tables
from runner.data.loading import load
from tests import forks


def titled(found: list[Table], title: str) -> Table:
    return next(one for one in found if one.title.startswith(title))


def test_digits_are_counted_by_class_and_split() -> None:
    found = tables(load(DatasetConfig(name="digits")), ["label"])
    assert titled(found, "splits").rows[0][:2] == ("train", "1,437")
    assert ("image", "height 8 x width 8 x channel 1", "uint8", "", "") in titled(found, "arrays").rows
    counts = titled(found, "examples by label")
    assert counts.columns == ("label", "train", "test")
    assert len(counts.rows) == 10
    assert sum(int(row[1].split()[0]) for row in counts.rows) == 1437


def dataset(arrays: dict[str, object], specs: dict[str, ArraySpec]) -> Dataset:
    source = ArraySource({name: np.asarray(one) for name, one in arrays.items()}, specs)
    return Dataset("own", "", source, source, None, "0", "here")


def test_numbers_are_measured_labels_counted_and_a_regressions_target_is_a_number() -> None:
    data = dataset(
        {"x": [[0.0, 1.0], [2.0, 3.0]], "tags": [[1, 0], [1, 1]], "y": [3, 5]},
        {
            "x": ArraySpec((2,), "float64", names=("a", "b")),
            "tags": ArraySpec((2,), "int64", names=("red", "blue")),
            "y": ArraySpec((), "int64"),
        },
    )
    found = tables(data, ["y"], measures=True)
    values = titled(found, "train")
    assert values.rows[0] == ("x a", "0", "1", "1", "1", "2")
    assert values.rows[-1] == ("y", "3", "4", "4", "1", "5")
    assert titled(found, "examples by tags").rows == (("red", *["2 (100.0%)"] * 2), ("blue", *["1 (50.0%)"] * 2))
    assert titled(tables(data, ["y"]), "examples by y").rows[0][0] == "3"
    assert examples(data.train, data.specs).rows[1] == ("1", "2 3", "red, blue", "5")


def test_a_cell_is_a_name_or_the_beginning_of_the_numbers() -> None:
    assert cell(np.array(1), ArraySpec((), "int64", names=("cat", "dog"))) == "dog"
    assert cell(np.arange(9.0), ArraySpec((9,), "float64")) == "0 1 2 3 4 5 ..."


def test_the_command_writes_a_picture_and_imports_no_engine(tmp_path: Path) -> None:
    words = ("dataset=digits", f"hydra.run.dir={tmp_path / 'o'}", "dataset.augment=[{name: flip}]")
    done = forks.python("-X", "importtime", "-m", "runner.data", *words)
    assert not [line for line in done.stderr.splitlines() if line.endswith((" tensorflow", " jax", " mlflow"))]
    assert {"examples.png", "augmented.png", "data.json"} <= {path.name for path in (tmp_path / "o").iterdir()}
    said = json.loads((tmp_path / "o" / "data.json").read_text())
    assert said["sha256"] in done.stdout
    assert said["tables"][0]["rows"][0][:2] == ["train", "1,437"]
