"""Data: from files, builders and a user's own objects to named arrays. Importing it imports no TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from runner.config.schema_data import ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER, DatasetConfig
from runner.data.base import Dataset, Encoding
from runner.data.cut import Whole, cut

__all__ = ["Dataset", "load"]

# Imported when one is asked for: what each of them imports takes longer than a refused config may.
_SOURCES = {name: f"runner.data.sources.{name}" for name in (ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER)}
_TFDS = "runner.data.sources.tfds"


class _Source(Protocol):
    """A module of `runner.data.sources`."""

    def load(self, config: DatasetConfig, encoding: Encoding | None) -> Whole: ...


def load(config: DatasetConfig, seed: int = 0, encoding: Encoding | None = None) -> Dataset:
    """Loads a dataset and cuts it, fetching and decoding it first where that was not done yet.

    Args:
      config: the dataset's config.
      seed: the run's, which chooses what is held out.
      encoding: of the run that other data is to be read for; None: it is made of this data.

    Returns:
      The dataset.

    Raises:
      ConfigError: a key's value does not work with this dataset.
      DataError: the data is not there and can't be fetched, or is broken. The message is one line.

    Example:
      >>> digits = load(DatasetConfig(name="digits"))
      >>> digits.train.specs["image"].shape
      (8, 8, 1)
    """
    source = cast(_Source, import_module(_SOURCES.get(config.name, _TFDS)))
    return cut(source.load(config, encoding), config, seed)
