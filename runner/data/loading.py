"""Loads a dataset: reads the source, selects splits, standardizes and augments."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from runner.config.options import output_tasks
from runner.config.schema import RunConfig
from runner.config.schema_data import DatasetConfig
from runner.data import registry
from runner.data.augment import augmented
from runner.data.base import TARGETS, Dataset, Encoding
from runner.data.packing import LABEL_WEIGHT
from runner.data.selection import make_dataset
from runner.data.standardize import columns_to_standardize, measure, standardized
from runner.host import stages

__all__ = ["Dataset", "load", "load_run"]


def load_run(config: RunConfig, encoding: Encoding | None = None) -> Dataset:
    """Loads the dataset of a run; see `load`.

    Args:
      config: the run's.
      encoding: of the recorded run that other data is read for; None: the data gets an encoding of its own.
    """
    task = config.task
    # Targets and weights are not inputs, so `dataset.standardize=true` leaves them unchanged.
    unscaled = list(task.target or TARGETS)
    for each_task in (task, *output_tasks(task).values()):
        if each_task.example_weight:
            unscaled.append(each_task.example_weight)
        # Tasks of tokens have this option; null means the array of this name.
        if "label_weight" in each_task.options:
            unscaled.append(each_task.options["label_weight"] or LABEL_WEIGHT)
    dataset = config.dataset
    name = dataset.builder or dataset.path or dataset.target or dataset.name
    with stages.stage(f"preparing {name}"):
        return load(dataset, config.trainer.seed, encoding, unscaled)


def load(
    config: DatasetConfig, seed: int = 0, encoding: Encoding | None = None, unscaled: Collection[str] = TARGETS
) -> Dataset:
    """Loads a dataset and selects its splits.

    Fetches and decodes it first if necessary.

    Args:
      config: the dataset's config.
      seed: the run's, which chooses the held-out examples.
      encoding: of the run that other data is read for; None: the data gets an encoding of its own.
      unscaled: arrays that `dataset.standardize=true` leaves unchanged.

    Returns:
      The dataset.

    Raises:
      ConfigError: the value of a key does not fit this dataset.
      DataError: the data is missing and can't be fetched, or is broken. The message is one line.

    Example:
      >>> digits = load(DatasetConfig(name="digits"))
      >>> digits.train.specs["image"].shape
      (8, 8, 1)
    """
    source = registry.entry(config).import_module()
    full = source.load(config, encoding)
    dataset = make_dataset(full, config, seed)
    names = columns_to_standardize(config.standardize, dataset.specs, unscaled)
    if names:
        # The statistics are those of the train split, which exists only after the selection. All splits are then
        # standardized with them and selected once more.
        statistics = encoding
        if statistics is None:
            statistics = measure(dataset.train, names)
        dataset = make_dataset(standardized(full, statistics, names), config, seed)
    validation = dataset.validation
    if validation is not None:
        validation = augmented(validation, config, seed, train=False)
    return replace(
        dataset,
        train=augmented(dataset.train, config, seed, train=True),
        validation=validation,
        test=augmented(dataset.test, config, seed, train=False),
    )
