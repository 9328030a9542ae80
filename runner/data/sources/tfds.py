"""TFDS datasets, which a child process writes as Arrow files, once; they are read as those of `dataset=huggingface`.

TFDS itself runs in the child, see `tfds_prepare`, because it initializes TensorFlow, which must not happen here before
the mesh is set up.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.data.base import DataSource, Encoding, FullDataset, in_memory
from runner.data.selection import RAM_BYTES
from runner.data.sources import stored
from runner.data.sources.prepared import META, data_dir, load_or_write, report_progress
from runner.errors import ConfigError, DataError, DownloadError, invalid

# This excludes community names such as `namespace:name`, for which TFDS would download and import code.
_NAME = re.compile(r"\w+(/[\w.+-]+)?(:\d+\.\d+\.\d+)?")
# Examples that are decoded at a time for the copy in memory.
_BATCH = 256


@dataclass(frozen=True)
class _Prepared:
    """What the child has written into `META`."""

    name: str
    version: str
    splits: list[str]
    supervised: list[str]  # names of the features


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Loads a builder's data; TFDS downloads and prepares it first if necessary."""
    name = config.name
    folder, content = _prepared(config)
    source = f"TFDS {content.name} {content.version}"
    files = {split: [folder / f"{split}.arrow"] for split in content.splits}
    selected = replace(config, features=config.features or content.supervised or None)
    data = stored.load_files(files, selected, encoding or Encoding(), name, source)
    splits = {split: _in_memory(rows) for split, rows in data.splits.items()}
    return replace(data, version=content.version, splits=splits)


def _in_memory(rows: DataSource) -> DataSource:
    try:
        return in_memory(rows, RAM_BYTES, _BATCH)
    except DataError:
        # Such as labels that are withheld. It is an error of a run that selects this split.
        return rows


def _prepared(config: DatasetConfig) -> tuple[Path, _Prepared]:
    """Returns the folder of a builder's Arrow files, which are written if they do not exist."""
    if not _NAME.fullmatch(config.name):
        problem = "must be a builder that TFDS ships, such as cifar10, emnist/letters or mnist:3.0.1, or digits"
        raise invalid("dataset.name", config.name, problem=problem, fix="try dataset.name=mnist")
    root = data_dir(config)
    folder = root / ".arrow" / config.name.replace("/", "-").replace(":", "-")
    content = load_or_write(folder, ("arrow",), _read, lambda partial: _prepare(config, root, partial), config.name)
    return folder, content


def _read(folder: Path) -> _Prepared | None:
    try:
        return _Prepared(**json.loads((folder / META).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _prepare(config: DatasetConfig, root: Path, into: Path) -> None:
    """Lets TFDS prepare the data in a child process, which writes it into a folder."""
    name = config.name
    report_progress(f"{name}: preparing with TFDS")
    # Accelerators belong to the run.
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    result = subprocess.run(
        [sys.executable, "-m", "runner.data.sources.tfds_prepare"],
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"},
        input=json.dumps({"name": name, "download": config.download, "root": str(root), "into": str(into)}),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    lines = list(filter(None, map(str.strip, result.stdout.splitlines())))
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = (result.stderr.strip().splitlines() or ["nothing"])[-1]
        raise DownloadError(f"preparing {name} failed with exit code {result.returncode}: {last}") from None
    if "invalid" in answer:
        raise ConfigError(answer["invalid"])
    if "failed" in answer:
        raise DownloadError(
            f"dataset.name={name}: there is no prepared data in {root}, and {answer['failed']}; prepare it on a "
            "machine with a network and set dataset.data_dir or TFDS_DATA_DIR to that folder, or use dataset=digits, "
            "which needs no network"
        )
