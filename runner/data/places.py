"""Where data is: a path as it was typed."""

from __future__ import annotations

import os
from pathlib import Path

from runner.config.schema_data import DatasetConfig


def local(path: str) -> Path:
    """Returns the file or folder of a path."""
    return Path(path).expanduser()


def shown(path: str) -> str:
    """Returns a path as messages and records show it."""
    return str(local(path))


def location(path: str) -> str:
    """Returns where data is, for messages and records: an absolute path."""
    return str(local(path).absolute())


def data_dir(config: DatasetConfig) -> Path:
    """Returns the folder of prepared data.

    It is `dataset.data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    """
    folder = config.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(folder).expanduser().absolute()
