"""The tasks: one entry per task, and what a run asks of it by the config.

A new task is a file of this package with its class and its options, an entry here, and `conf/task/<name>.yaml`. The
class of a task is imported when it is asked for: it imports NumPy, which most config errors are reported without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

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
    from runner.task.base import Task
else:
    # It imports NumPy, which most errors of the config are reported without.
    base = late("runner.task.base")

_FOLDER = "runner.task"


@dataclass(frozen=True)
class TaskEntry:
    """One task.

    Attributes:
      path: import path of its class, see `runner.task.base.Task`.
      predicts: what has a target of its own: each `example`, each `token` of a row, or `any` of both.
      labels_positions: its target is a class number per pixel, time step or token.
      has_measurements: its targets are measurements, whose mean and deviation `runner.data` shows, not categories.
      own_step: a user's class computes its updates with optimizers of its own, which not every engine can do.
      of_model: the model's `compile` has its loss, metrics and optimizer, which not every engine can do.
      samples_text: its option `sample` says what text is sampled at each evaluation.
      counts_tokens: its examples are rows of tokens, or may be, depending on the data; see `Task.tokens`.
      judges_outputs: it can judge one of several outputs of a model.
      has_outputs: it is made of tasks that judge an output each, see `outputs`.
      array_options: its options that name further arrays, which are not inputs by default.
      counting_options: its options that, if they are not null, make examples count by their labels.
    """

    path: str
    predicts: Literal["example", "token", "any"] = "example"
    labels_positions: bool = False
    has_measurements: bool = False
    samples_text: bool = False
    counts_tokens: bool = False
    judges_outputs: bool = True
    has_outputs: bool = False
    array_options: tuple[str, ...] = ()
    counting_options: tuple[str, ...] = ()
    own_step: bool = False
    of_model: bool = False

    def load(self) -> type[Task]:
        """Imports the task's class."""
        module, _, name = self.path.rpartition(".")
        return cast("type[Task]", getattr(import_module(module), name))


TASKS: dict[str, TaskEntry] = {
    "classification": TaskEntry(f"{_FOLDER}.classification.Classification"),
    "multilabel": TaskEntry(f"{_FOLDER}.sigmoids.Multilabel"),
    "binary": TaskEntry(f"{_FOLDER}.sigmoids.Binary"),
    "positions": TaskEntry(
        f"{_FOLDER}.positions.Positions",
        predicts="any",
        labels_positions=True,
        counts_tokens=True,
        array_options=("label_weight",),
        counting_options=("ignore_index", "label_weight"),
    ),
    "regression": TaskEntry(f"{_FOLDER}.regression.Regression", has_measurements=True),
    "language_model": TaskEntry(
        f"{_FOLDER}.language_model.LanguageModel",
        predicts="token",
        samples_text=True,
        counts_tokens=True,
        judges_outputs=False,
    ),
    "several": TaskEntry(f"{_FOLDER}.several.Several", predicts="any", judges_outputs=False, has_outputs=True),
    "custom": TaskEntry(f"{_FOLDER}.custom.Custom", predicts="any"),
    "step": TaskEntry(f"{_FOLDER}.custom.StepTask", predicts="any", own_step=True, judges_outputs=False),
    "compiled": TaskEntry(f"{_FOLDER}.compiled.Compiled", predicts="any", of_model=True, judges_outputs=False),
}


def register(name: str, entry: TaskEntry, options: type[Any]) -> None:
    """Adds a task, the value `name` of `task.name`.

    Its dataclass of options is imported with the entry, so its module must not import NumPy or anything heavier. Those
    of the built-in tasks are in `runner.config.schema_task`, as `runner.config` can't import this package.
    """
    TASKS[name] = entry
    schema_task.OPTIONS[name] = options


def entry(config: TaskConfig) -> TaskEntry:
    """Returns the entry that a config selects."""
    return TASKS[config.name]


def entries(config: TaskConfig) -> list[TaskEntry]:
    """Returns the entry that a config selects, and those of the tasks that judge its outputs."""
    return [entry(config), *map(entry, output_tasks(config).values())]


def compares_rows(config: TaskConfig) -> bool:
    """Returns whether the loss, or that of an output, compares the rows of the whole global batch."""
    judging = (config, *output_tasks(config).values())
    return entry(config).of_model or any(task.options.get("whole_batch") for task in judging)


def key_of(config: TaskConfig) -> str:
    """Returns the key and value that chose a task's loss, for errors."""
    target = config.options.get("target")
    if target:
        return f"task._target_={target}"
    return f"task={config.name}"


def check(config: TaskConfig) -> None:
    """Checks a task's options without a dataset. Raises ConfigError if a value is invalid."""
    options = task_options(config)
    # Single values first: the task's own check relies on them.
    values.check(options, "task")
    entry(config).load().check_options(options)


def make_task(
    config: TaskConfig,
    arrays: Mapping[str, ArraySpec],
    train: DataSource | None = None,
    constants: Mapping[str, Sequence[float]] | None = None,
    vocabulary: Vocabulary | None = None,
) -> Task:
    """Returns a run's task; the arguments are those of `TaskData`.

    Raises:
      ConfigError: the dataset does not have the arrays that the task needs.
    """
    data = base.TaskData(arrays, train, constants or {}, vocabulary)
    task = entry(config).load()(config, task_options(config), data)
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
    return {LOSS_NAME: MINIMIZE, **entry(config).load().metric_directions(task_options(config))}


def step_metric_names(config: TaskConfig) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    return entry(config).load().step_metric_names(task_options(config))
