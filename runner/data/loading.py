"""Loads a dataset: reads the source, selects splits, standardizes and augments."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from runner.config.options import output_tasks
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import registry
from runner.data.augment import augmented
from runner.data.base import TARGETS, Dataset, Encoding
from runner.data.packing import LABEL_WEIGHT
from runner.data.selection import make_dataset
from runner.data.standardize import columns_to_standardize, measure, standardized
from runner.errors import DataError
from runner.host import stages

# Tasks with one number, class or vector per example.
_ONE_TARGET = ("classification", "binary", "multilabel", "regression")


def load(
    config: DatasetConfig,
    seed: int = 0,
    encoding: Encoding | None = None,
    task: TaskConfig | None = None,
    evaluated: str | None = None,
) -> Dataset:
    """Loads a dataset and selects its splits; fetches and decodes it first if necessary.

    With the `encoding` of a recorded run, other data is read as that run's was. `dataset.standardize=true` leaves the
    target and the weights of the `task` as they are, and augmentation does not blend its labels of positions. The
    examples of the split expression `evaluated` take the place of `test`.

    Raises:
      ConfigError: the value of a key does not fit this dataset.
      DataError: the data is missing and can't be fetched, or is broken.

    >>> load(DatasetConfig(name="digits")).train.specs["image"].shape
    (8, 8, 1)
    """
    task = task or TaskConfig()
    unscaled = list(task.target or TARGETS)
    masks: dict[str, int] = {}
    outputs = output_tasks(task)
    for name_of_output, output_task in outputs.items():
        unscaled += _read_as_they_are(output_task)
        masks.update(_masks(output_task, output_task.target or (name_of_output,)))
    if not outputs:
        unscaled += _read_as_they_are(task)
        masks = _masks(task, task.target or TARGETS)
    with stages.stage(f"preparing {config.path or config.target or config.name}"):
        full = registry.entry(config).load(config, encoding)
        if full.doubt and task.name in _ONE_TARGET:
            raise DataError(full.doubt)
        dataset = make_dataset(full, config, seed, evaluated)
        names = columns_to_standardize(config.standardize, dataset.specs, unscaled)
        if names:
            dataset = standardized(dataset, encoding or measure(dataset.train, names), names)
        validation = dataset.validation
        if validation is not None:
            validation = augmented(validation, config, seed, train=False, masks=masks)
        return replace(
            dataset,
            train=augmented(dataset.train, config, seed, train=True, masks=masks),
            validation=validation,
            test=augmented(dataset.test, config, seed, train=False, masks=masks),
        )


def _read_as_they_are(task: TaskConfig) -> list[str]:
    """Returns the weights that a task reads beside inputs and target."""
    names = []
    if task.example_weight:
        names.append(task.example_weight)
    # Tasks of tokens have this option; null means the array of this name.
    if "label_weight" in task.options:
        names.append(task.options["label_weight"] or LABEL_WEIGHT)
    return names


def _masks(task: TaskConfig, targets: Collection[str]) -> dict[str, int]:
    """Returns the arrays that augmentation does not blend, with the value outside of an image.

    Tasks of class numbers per position have `ignore_index`: a label from outside of an image is not counted.
    """
    if "ignore_index" not in task.options:
        return {}
    masks = dict.fromkeys((*targets, *_read_as_they_are(task)), 0)
    outside = task.options["ignore_index"]
    if outside is not None:
        masks.update(dict.fromkeys(targets, outside))
    return masks
