from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runner.data.digest import digest
from runner.data.sources.tfds import cache

ROOT = Path(__file__).resolve().parents[2]
DEAD_PROXY = "http://127.0.0.1:9"

LOAD = """
import json, sys, time
from runner.data.loading import load
from runner.config.schema import DatasetConfig
start = time.monotonic()
try:
    dataset = load(DatasetConfig(**json.loads(sys.argv[1])))
    print(dataset.digest, dataset.train.size, dataset.test.size)
except Exception as error:
    print(type(error).__name__, error)
    raise SystemExit(3)
finally:
    print(sorted({"tensorflow", "tensorflow_datasets"} & set(sys.modules)), file=sys.stderr)
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a Python process that can import the package."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )


def offline() -> dict[str, str]:
    """Environment in which neither TFDS, pip nor apt reaches anything."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_PROXY", "all_proxy")
    proxies = dict.fromkeys(names, DEAD_PROXY)
    no_index = {"PIP_INDEX_URL": f"{DEAD_PROXY}/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}
    return {**proxies, **no_index, "PIP_FIND_LINKS": "", "no_proxy": "", "NO_PROXY": ""}


@dataclass
class FakeCache:
    """A data_dir with decoded data that a test wrote, in the form that the last release wrote."""

    root: Path

    def write(
        self,
        name: str = "mnist",
        version: str = "3.0.1",
        config: str | None = None,
        default_config: bool = True,
        labels: np.ndarray | None = None,
        image_size: list[int] | None = None,
    ) -> Path:
        """Writes 100 examples of train, whose pixels state their row, and 30 of test."""
        train_labels = np.arange(100, dtype=np.int32) % 10 if labels is None else labels
        whole = {
            "train": {"image": _images(len(train_labels), 0), "label": train_labels},
            "test": {"image": _images(30, 100), "label": np.arange(30, dtype=np.int32) % 10},
        }
        meta = {
            "name": name,
            "config": config,
            "default_config": default_config,
            "version": version,
            "image_size": image_size,
            "num_classes": 10,
            "class_names": list("0123456789"),
            "splits": {key: len(split["label"]) for key, split in whole.items()},
            "digest": digest(whole.items()),
            "source": "a test",
            "format": 1,
        }
        size = f"{image_size[0]}x{image_size[1]}" if image_size else None
        folder = cache.decoded_dir(self.root) / "-".join(part for part in (name, config, version, size) if part)
        for key, split in whole.items():
            (folder / key).mkdir(parents=True, exist_ok=True)
            np.save(folder / key / "images.npy", split["image"])
            np.save(folder / key / "labels.npy", split["label"])
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")
        return folder


def _images(count: int, first: int) -> np.ndarray:
    rows = np.arange(first, first + count, dtype=np.uint8)
    return np.broadcast_to(rows[:, None, None, None], (count, 4, 4, 1)).copy()


@pytest.fixture
def fake_cache(tmp_path: Path) -> FakeCache:
    return FakeCache(tmp_path)
