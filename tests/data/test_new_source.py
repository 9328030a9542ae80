"""A new data source is its own file, one registry entry and one YAML file; nothing else changes."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_data import DatasetConfig
from runner.data import checks, registry
from runner.data.base import Dataset
from runner.data.loading import load
from runner.errors import ConfigError
from tests import forks
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

# Its YAML file.
YAML = """
name: quadrants
batch_size: 8
train: train
test: test
"""

# Its registry entry, and a command that has it.
COMMAND = """
import sys
from importlib import import_module

from runner.data import registry

registry.SOURCES["quadrants"] = registry.SourceEntry("quadrants", is_users_data=True)
import_module("runner.cli.entry").main(sys.argv.pop(1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    config_dir = tmp_path / "conf" / "dataset"
    config_dir.mkdir(parents=True)
    (config_dir / f"{NAME}.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.SOURCES, NAME, registry.SourceEntry(NAME, is_users_data=True))
    return tmp_path


def run(folder: Path, module: str, *overrides: str) -> str:
    fixed = ["--config-dir", "conf", f"dataset={NAME}", f"hydra.run.dir={folder / 'run'}", "tracking=none"]
    process = forks.run(
        [sys.executable, "-c", COMMAND, module, *fixed, *overrides],
        library=forks.TENSORFLOW,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"},
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


@pytest.mark.usefixtures("folder")
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


@pytest.mark.slow
def test_a_new_source_is_trained_on(folder: Path) -> None:
    output = run(folder, "runner.cli.train", "trainer.epochs=1", "trainer.progress=lines", "mesh=batch8")
    assert "eval/accuracy" in output


@pytest.mark.parametrize("name", registry.SOURCES)
def test_every_entry_has_a_module_with_its_function_and_a_yaml_file(name: str) -> None:
    assert callable(importlib.import_module(registry.SOURCES[name].module).load)
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
