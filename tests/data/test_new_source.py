"""A new data source is its own file, one registry entry and one YAML file; nothing else changes."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_data import DatasetConfig
from runner.data import checks, registry, sources
from runner.data.base import Dataset
from runner.data.loading import load
from runner.errors import ConfigError
from tests.data.conftest import ROOT

NAME = "quadrants"

# The source's own file: points, and the quadrant of the plane that each is in.
MODULE = """
import numpy as np

from runner.data.base import ArraySource, ArraySpec, FullDataset
from runner.data.digest import digest


def load(config, encoding=None):
    points = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    labels = (2 * (points[:, 0] > 0) + (points[:, 1] > 0)).astype(np.int32)
    specs = {"point": ArraySpec((2,), "float32"), "label": ArraySpec((), "int32", names=("sw", "nw", "se", "ne"))}
    parts = {"train": slice(40), "validation": slice(40, 48), "test": slice(48, None)}
    arrays = {split: {"point": points[rows], "label": labels[rows]} for split, rows in parts.items()}
    splits = {split: ArraySource(named, specs) for split, named in arrays.items()}
    return FullDataset("quadrants", "1", splits, digest(arrays.items()), "computed")
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path)])
    monkeypatch.setitem(registry.SOURCES, NAME, registry.SourceEntry(NAME, is_users_data=True))


@pytest.mark.usefixtures("source")
def test_a_new_source_is_loaded_with_its_splits_holdout_and_standardization() -> None:
    dataset: Dataset = load(DatasetConfig(name=NAME))
    assert (dataset.train.size, dataset.test.size) == (40, 12)
    assert dataset.validation is not None, "the entry says that its split validation is used"
    assert dataset.validation.size == 8
    part = load(DatasetConfig(name=NAME, train="train[:50%]", holdout=0.2, standardize=True))
    assert part.validation is not None
    assert (part.train.size, part.validation.size) == (16, 4)
    mean = part.train.read(np.arange(16))["point"].mean(0)
    np.testing.assert_allclose(mean, 0, atol=1e-6)


@pytest.mark.parametrize("name", registry.SOURCES)
def test_every_entry_has_a_module_with_its_function_and_a_yaml_file(name: str) -> None:
    assert callable(importlib.import_module(f"runner.data.sources.{registry.SOURCES[name].module}").load)
    assert (ROOT / "conf" / "dataset" / f"{name}.yaml").is_file()


@pytest.mark.parametrize("key", ["path", "target", "channels"])
@pytest.mark.parametrize("name", registry.SOURCES)
def test_the_checks_accept_the_keys_that_an_entry_declares(name: str, key: str) -> None:
    values = {"path": ".", "target": "tests.data.texts.config", "channels": 3}
    config = DatasetConfig(name=name, **{key: values[key]})  # type: ignore[arg-type]
    problem = ""
    try:
        checks.check(config)
    except ConfigError as error:
        problem = str(error)
    is_rejected = f"={name} has no such key" in problem or f"={name}: has no such key" in problem
    assert is_rejected == (key not in registry.SOURCES[name].keys), problem
