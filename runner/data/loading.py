"""Loads a dataset: reads the source, selects splits, standardizes and augments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from runner.config.options import output_tasks
from runner.config.schema import RunConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import registry
from runner.data.augment import augmented
from runner.data.base import TARGETS, Dataset, Encoding
from runner.data.packed_examples import packed_dataset
from runner.data.packing import LABEL_WEIGHT
from runner.data.selection import make_dataset
from runner.data.standardize import columns_to_standardize, measure, standardized
from runner.host import stages

__all__ = ["Dataset", "load", "load_run"]

# Options of tasks that name arrays of integers.
_ARRAYS = ("input_length", "candidate_id")


def load_run(config: RunConfig, encoding: Encoding | None = None, evaluated: str | None = None) -> Dataset:
    """Loads the dataset of a run; see `load`.

    Args:
      config: the run's.
      encoding: of the recorded run that other data is read for; None: the data gets an encoding of its own.
      evaluated: split expression whose examples take the place of `test`; None: the config's.
    """
    task = config.task
    # Targets and weights are not inputs, so `dataset.standardize=true` leaves them unchanged.
    unscaled = list(task.target or TARGETS)
    masks: dict[str, int] = {}
    outputs = output_tasks(task)
    for name_of_output, output_task in outputs.items():
        unscaled += _read_as_they_are(output_task)
        masks.update(_masks(output_task, output_task.target or (name_of_output,)))
    if not outputs:
        unscaled += _read_as_they_are(task)
        masks = _masks(task, task.target or TARGETS)
    dataset = config.dataset
    name = dataset.builder or dataset.path or dataset.target or dataset.name
    with stages.stage(f"preparing {name}"):
        return load(dataset, config.trainer.seed, encoding, unscaled, masks, evaluated)


def _read_as_they_are(task: TaskConfig) -> list[str]:
    """Returns the arrays that a task reads beside inputs and target: weights, numbers of steps and IDs."""
    names = []
    if task.example_weight:
        names.append(task.example_weight)
    # Tasks of tokens have this option; null means the array of this name.
    if "label_weight" in task.options:
        names.append(task.options["label_weight"] or LABEL_WEIGHT)
    for option in _ARRAYS:
        if task.options.get(option):
            names.append(task.options[option])
    return names


def _masks(task: TaskConfig, targets: Collection[str]) -> dict[str, int]:
    """Returns the arrays that augmentation does not blend, with the value outside of an image.

    Tasks of class numbers per position have the option `ignore_index`. A label from outside of an image is one that is
    not counted, if there is one.
    """
    if "ignore_index" not in task.options:
        return {}
    masks = dict.fromkeys((*targets, *_read_as_they_are(task)), 0)
    outside = task.options["ignore_index"]
    if outside is not None:
        masks.update(dict.fromkeys(targets, outside))
    return masks


def load(
    config: DatasetConfig,
    seed: int = 0,
    encoding: Encoding | None = None,
    unscaled: Collection[str] = TARGETS,
    masks: Mapping[str, int] | None = None,
    evaluated: str | None = None,
) -> Dataset:
    """Loads a dataset and selects its splits.

    Fetches and decodes it first if necessary.

    Args:
      config: the dataset's config.
      seed: the run's, which chooses the held-out examples.
      encoding: of the run that other data is read for; None: the data gets an encoding of its own.
      unscaled: arrays that `dataset.standardize=true` leaves unchanged.
      masks: arrays that augmentation does not blend, see `runner.data.augment_steps.Step`; None: none.
      evaluated: split expression whose examples take the place of `test`; None: the config's.

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
    full = registry.entry(config).load(config, encoding)
    dataset = make_dataset(full, config, seed, evaluated)
    # Padding would count in the statistics. Runs that were recorded earlier may have such statistics.
    padded = [name for name in config.pad or () if encoding is None or name not in encoding.mean]
    unscaled = [*unscaled, *padded]
    names = columns_to_standardize(config.standardize, dataset.specs, unscaled)
    if names:
        # The statistics are those of the train split, which exists only after the selection. All splits are then
        # standardized with them and selected once more.
        statistics = encoding
        if statistics is None:
            statistics = measure(dataset.train, names)
        dataset = make_dataset(standardized(full, statistics, names), config, seed, evaluated)
    # After the selection, so that splits are parts of the examples and not of the rows.
    dataset = packed_dataset(dataset, config)
    validation = dataset.validation
    if validation is not None:
        validation = augmented(validation, config, seed, train=False, masks=masks)
    return replace(
        dataset,
        train=augmented(dataset.train, config, seed, train=True, masks=masks),
        validation=validation,
        test=augmented(dataset.test, config, seed, train=False, masks=masks),
    )
