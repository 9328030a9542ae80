"""The tasks: one entry per task, and what a run asks of it by the config.

A new task is a file of this package with its class and its options, an entry here, and `conf/task/<name>.yaml`. The
module of a task is imported when it is asked for: it imports NumPy, which most config errors are reported without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from runner.config import schema_task, values
from runner.config.options import output_tasks, task_options
from runner.config.schema_task import TaskConfig
from runner.errors import invalid
from runner.host.late import late
from runner.task.metrics import LOSS_NAME, MINIMIZE

if TYPE_CHECKING:
    from runner.data.base import ArraySpec, DataSource
    from runner.data.vocabulary import Vocabulary
    from runner.task import base
    from runner.task.base import Task, TaskData
else:
    # It imports NumPy, which most errors of the config are reported without.
    base = late("runner.task.base")

_FOLDER = "runner.task"


class TaskModule(Protocol):
    """The module of a task. `options` is always an instance of the entry's dataclass."""

    def make(self, config: TaskConfig, options: Any, data: TaskData) -> Task:
        """Returns the task of a run.

        Raises:
          ConfigError: the dataset does not have the arrays that the task needs.
        """
        ...

    def check(self, options: Any) -> None:
        """Checks the options without a dataset.

        Raises:
          ConfigError: a value is invalid.
        """
        ...

    def directions(self, options: Any) -> dict[str, str]:
        """Returns the metrics of an evaluation except the loss, by name -> `maximize` or `minimize`."""
        ...

    def step_metrics(self, options: Any) -> tuple[str, ...]:
        """Returns the names of the metrics of a training step except the loss."""
        ...


@dataclass(frozen=True)
class TaskEntry:
    """One task.

    Attributes:
      module: import path of its module, see `TaskModule`.
      options: dataclass of the keys of the group `task` that only this task has. It is imported with the registry, so
        its own module must not import NumPy or anything heavier.
      predicts: what has a target of its own: each `example`, each `token` of a row, or `any` of both.
      labels_positions: its target is a class number per pixel, time step or token.
      has_measurements: its targets are measurements, whose mean and deviation `runner.data` shows, not categories.
      own_step: a user's class computes its updates with optimizers of its own, which not every engine can do.
      samples_text: its option `sample` says what text is sampled at each evaluation.
      counts_tokens: its examples are rows of tokens, or may be, depending on the data; see `Task.tokens`.
      judges_outputs: it can judge one of several outputs of a model.
      has_outputs: it is made of tasks that judge an output each, see `outputs`.
      array_options: its options that name further arrays, which are not inputs by default.
      counting_options: its options that, if they are not null, make examples count by their labels.
      predictions: names of what it predicts from an output, see `Task.predictions`, if these are several; without
        `logits` if its option `from_logits` is false.
    """

    module: str
    options: type[Any]
    predicts: Literal["example", "token", "any"] = "example"
    labels_positions: bool = False
    has_measurements: bool = False
    samples_text: bool = False
    counts_tokens: bool = False
    judges_outputs: bool = True
    has_outputs: bool = False
    array_options: tuple[str, ...] = ()
    counting_options: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    own_step: bool = False

    def import_module(self) -> TaskModule:
        """Imports the task's module."""
        return cast(TaskModule, import_module(self.module))


TASKS: dict[str, TaskEntry] = {}


def register(name: str, entry: TaskEntry) -> None:
    """Adds a task."""
    TASKS[name] = entry
    # `runner.config` converts the options of a task to their types, and can't import this package, which is above it.
    schema_task.OPTIONS[name] = entry.options


# The options of these are in `runner.config.schema_task`, which the reference of the config is generated from.
register(
    "classification",
    TaskEntry(
        f"{_FOLDER}.classification",
        schema_task.ClassificationOptions,
        predictions=("logits", "probabilities", "class"),
    ),
)
register(
    "multilabel",
    TaskEntry(f"{_FOLDER}.multilabel", schema_task.MultilabelOptions, predictions=("logits", "probabilities")),
)
register(
    "binary",
    TaskEntry(f"{_FOLDER}.binary", schema_task.BinaryOptions, predictions=("logits", "probabilities")),
)
register(
    "positions",
    TaskEntry(
        f"{_FOLDER}.positions",
        schema_task.PositionsOptions,
        predicts="any",
        labels_positions=True,
        counts_tokens=True,
        array_options=("label_weight",),
        counting_options=("ignore_index", "label_weight"),
        predictions=("logits", "probabilities", "class"),
    ),
)
register("regression", TaskEntry(f"{_FOLDER}.regression", schema_task.RegressionOptions, has_measurements=True))
register(
    "language_model",
    TaskEntry(
        f"{_FOLDER}.language_model",
        schema_task.LanguageModelOptions,
        predicts="token",
        samples_text=True,
        counts_tokens=True,
        judges_outputs=False,
    ),
)
register(
    "sequence_to_sequence",
    TaskEntry(
        f"{_FOLDER}.sequence_to_sequence",
        schema_task.SequenceToSequenceOptions,
        predicts="any",
        counts_tokens=True,
        counting_options=("padding",),
    ),
)
register(
    "several",
    TaskEntry(
        f"{_FOLDER}.several", schema_task.SeveralOptions, predicts="any", judges_outputs=False, has_outputs=True
    ),
)
register(
    "custom",
    TaskEntry(
        f"{_FOLDER}.custom",
        schema_task.CustomOptions,
        predicts="any",
    ),
)
register(
    "step",
    TaskEntry(
        f"{_FOLDER}.step",
        schema_task.StepOptions,
        predicts="any",
        own_step=True,
        judges_outputs=False,
    ),
)


def entry(config: TaskConfig) -> TaskEntry:
    """Returns the entry that a config selects."""
    return TASKS[config.name]


def entries(config: TaskConfig) -> list[TaskEntry]:
    """Returns the entry that a config selects, and those of the tasks that judge its outputs."""
    return [entry(config), *(entry(output) for output in output_tasks(config).values())]


def compares_rows(config: TaskConfig) -> bool:
    """Returns whether the loss, or that of an output, compares the rows of the whole global batch."""
    return any(judging.options.get("whole_batch") for judging in (config, *output_tasks(config).values()))


def key_of(config: TaskConfig) -> str:
    """Returns the key and value that chose a task's loss, for errors."""
    target = config.options.get("target")
    return f"task._target_={target}" if target else f"task={config.name}"


def check(config: TaskConfig) -> None:
    """Checks a task's options without a dataset.

    Raises:
      ConfigError: a value is invalid.
    """
    options = task_options(config)
    # Single values first: the task's own check relies on them.
    values.check(options, "task")
    entry(config).import_module().check(options)


def make_task(
    config: TaskConfig,
    arrays: Mapping[str, ArraySpec],
    train: DataSource | None = None,
    constants: Mapping[str, Sequence[float]] | None = None,
    vocabulary: Vocabulary | None = None,
) -> Task:
    """Returns a run's task.

    Args:
      train: split that class weights and similar constants are computed from if the config asks for them; None: they
        must be in `constants`.
      constants: `Task.constants` of the run that is resumed or evaluated; None: a new run.
      vocabulary: meaning of the tokens of a text dataset; None: the dataset has none.

    Raises:
      ConfigError: the dataset does not have the arrays that the task needs.
    """
    data = base.TaskData(arrays, train, constants or {}, vocabulary)
    task = entry(config).import_module().make(config, task_options(config), data)
    task.scales_by_model = config.scale_images == "auto"
    if not task.scales_by_model:
        task.decide_scaling(scale=bool(config.scale_images))
        if task.scale_images and not task.byte_images:
            problem = "has no effect, as no input is an image of bytes"
            raise invalid("task.scale_images", True, problem=problem, fix="remove it, or scale the data")
    elif base.SCALED in data.constants:
        task.decide_scaling(scale=bool(data.constants[base.SCALED][0]))
    return task


def metric_directions(config: TaskConfig) -> dict[str, str]:
    """Returns the metrics of an evaluation, `loss` first, by name -> `maximize` or `minimize`."""
    return {LOSS_NAME: MINIMIZE, **entry(config).import_module().directions(task_options(config))}


def step_metric_names(config: TaskConfig) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    return entry(config).import_module().step_metrics(task_options(config))
