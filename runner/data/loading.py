"""Data: from files, builders and a user's own objects to named arrays. Importing it imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from importlib import import_module
from typing import Protocol, cast

from runner.config.schema import RunConfig
from runner.config.schema_data import ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER, TEXTS, DatasetConfig
from runner.config.schema_task import LANGUAGE_MODEL
from runner.data.augment import augmented
from runner.data.base import TARGETS, Dataset, Encoding
from runner.data.cut import Whole, make_dataset
from runner.data.packed import LABEL_WEIGHT
from runner.data.standardize import chosen, measured, standardized
from runner.host import stages

__all__ = ["Dataset", "load", "load_run"]

# Imported when one is asked for: what each of them imports takes longer than a refused config may.
_SOURCES = {name: f"runner.data.sources.{name}" for name in (ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER, *TEXTS)}
_TFDS = "runner.data.sources.tfds"


class _Source(Protocol):
    """A module of `runner.data.sources`."""

    def load(self, config: DatasetConfig, encoding: Encoding | None) -> Whole: ...


def load_run(config: RunConfig, encoding: Encoding | None = None) -> Dataset:
    """Loads the dataset of a run; see `load`.

    Args:
      config: the run's.
      encoding: of the recorded run that other data is read for; None: it is made of this data.
    """
    task = config.task
    keep = [*(task.target or TARGETS), *([task.example_weight] if task.example_weight else [])]
    if task.name == LANGUAGE_MODEL:
        keep.append(task.options.get("label_weight") or LABEL_WEIGHT)
    with stages.stage(f"preparing {_named(config.dataset)}"):
        return load(config.dataset, config.trainer.seed, encoding, keep)


def _named(config: DatasetConfig) -> str:
    return config.builder or config.path or (config.name if config.name != CUSTOM else config.target)


def load(
    config: DatasetConfig, seed: int = 0, encoding: Encoding | None = None, keep: Collection[str] = TARGETS
) -> Dataset:
    """Loads a dataset and cuts it, fetching and decoding it first where that was not done yet.

    Args:
      config: the dataset's config.
      seed: the run's, which chooses what is held out.
      encoding: of the run that other data is to be read for; None: it is made of this data.
      keep: arrays that `dataset.standardize=true` leaves as they are.

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
    own = config.builder is None and config.name in _SOURCES
    source = cast(_Source, import_module(_SOURCES[config.name] if own else _TFDS))
    whole = source.load(config, encoding)
    data = make_dataset(whole, config, seed)
    names = chosen(config.standardize, data.specs, keep)
    if names:
        statistics = measured(data.train, names) if encoding is None else encoding
        data = make_dataset(standardized(whole, statistics, names), config, seed)
    return replace(
        data,
        train=augmented(data.train, config, seed, train=True),
        validation=data.validation and augmented(data.validation, config, seed, train=False),
        test=augmented(data.test, config, seed, train=False),
    )
