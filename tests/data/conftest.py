import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config import values
from runner.config.schema_data import DatasetConfig
from runner.data import checks, loading
from runner.data.base import Dataset, Encoding

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a test an empty current directory, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def loaded(config: DatasetConfig, encoding: Encoding | None = None) -> Dataset:
    """Checks a config and loads its data, as a run does."""
    values.check(config, "dataset")
    checks.check(config)
    return loading.load(config, 0, encoding)


def opened(encoding: Encoding | None = None, **keys: object) -> Dataset:
    """Returns the data of a config with some keys, see `loaded`."""
    return loaded(DatasetConfig(**keys), encoding)  # type: ignore[arg-type]


LOAD = """
import json, sys
from runner.data.loading import load
from runner.config.schema import DatasetConfig
dataset = load(DatasetConfig(**json.loads(sys.argv[1])))
print(dataset.digest, dataset.train.size, dataset.test.size)
print(sorted({"tensorflow", "tensorflow_datasets"} & set(sys.modules)), file=sys.stderr)
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a Python process that can import the package."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
