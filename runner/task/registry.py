"""What is to be learned: losses, metrics and reports of named arrays. Imports neither TensorFlow nor JAX.

Classes, pixels and accuracy are words of this package, of `data` and of `model`; the rest knows names and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runner.config import values
from runner.config.options import task_options
from runner.config.schema_task import LANGUAGE_MODEL, TaskConfig
from runner.data.base import ArraySpec, DataSource
from runner.data.vocabulary import Vocabulary
from runner.task import classification, custom, language_model, multilabel, regression
from runner.task.base import LOSS, Task
from runner.task.metrics import MINIMIZE


class _Kind(NamedTuple):
    """One entry of the table of tasks: its class, and by its options: their check, its metrics, those of a step."""

    make: Callable[..., Task]
    check: Callable[[Any], None]
    directions: Callable[[Any], dict[str, str]]
    of_steps: Callable[[Any], Sequence[str]]


_KINDS: Mapping[str, _Kind] = {
    name: _Kind(kind, module.check, module.directions, module.of_steps)
    for name, kind, module in (
        ("classification", classification.Classification, classification),
        ("multilabel", multilabel.Multilabel, multilabel),
        ("regression", regression.Regression, regression),
        (LANGUAGE_MODEL, language_model.LanguageModel, language_model),
        ("custom", custom.Custom, custom),
    )
}


def check(config: TaskConfig) -> None:
    """Checks a task's options, without a dataset.

    Raises:
      ConfigError: one of them can't work.
    """
    options = task_options(config)
    values.check(options, "task")
    _KINDS[config.name].check(options)


def make_task(
    config: TaskConfig,
    arrays: Mapping[str, ArraySpec],
    train: DataSource | None = None,
    constants: Mapping[str, Sequence[float]] | None = None,
    vocabulary: Vocabulary | None = None,
) -> Task:
    """Makes a run's task.

    Args:
      config: checked.
      arrays: specs of the dataset's arrays by name.
      train: the split that weights of classes and the like are computed from, where the config asks for it.
      constants: what was computed from it before, `Task.constants` of the run that goes on or is evaluated.
      vocabulary: of a dataset of text, what its tokens stand for.

    Raises:
      ConfigError: the dataset has no such array, or one of another kind than the task takes.
    """
    options = task_options(config)
    told = {"vocabulary": vocabulary} if config.name == LANGUAGE_MODEL else {}
    return _KINDS[config.name].make(config, options, arrays, train, constants or {}, **told)


def metric_directions(config: TaskConfig) -> dict[str, str]:
    """Returns each metric of an evaluation, `loss` first -> `maximize` or `minimize`, from the config alone."""
    return {LOSS: MINIMIZE, **_KINDS[config.name].directions(task_options(config))}


def step_metric_names(config: TaskConfig) -> tuple[str, ...]:
    """Returns the metrics of a training step beside the loss, from the config alone."""
    return tuple(_KINDS[config.name].of_steps(task_options(config)))
