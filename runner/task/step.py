"""A custom step: a user's class that computes updates, losses and metrics with its own models and optimizers.

See docs/custom_steps.md for the class. The engine calls it; the task has the names of its metrics and the roles of the
dataset's arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import StepOptions, TaskConfig
from runner.data.base import Array, DataSource
from runner.errors import invalid
from runner.host import import_path
from runner.task.base import LOSS, Evaluation, Outputs, Report, Task, TaskData
from runner.task.custom import output_spec
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.supervised import Supervised, roles

# The total of an evaluation that counts its examples; the others have the names of metrics.
EXAMPLES = "examples"
_KEY = "task._target_"


def directions(options: StepOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    return {**dict.fromkeys(options.maximize, MAXIMIZE), **dict.fromkeys(options.minimize, MINIMIZE)}


def step_metrics(options: StepOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    return tuple(options.log)


def check(options: StepOptions) -> None:
    """Checks options without a dataset, and without importing the class.

    Raises:
      ConfigError: there is no such package, or a metric has a name twice.
    """
    for key, names in (
        ("task.log", options.log),
        ("task.maximize", [*options.maximize, *options.minimize]),
    ):
        known = {LOSS, EXAMPLES}
        for name in names:
            if name in known:
                fix = f"remove it from {key}; {LOSS} is always a metric, and {EXAMPLES} is reserved"
                raise invalid(key, name, problem="a metric must have a name of its own", fix=fix)
            known.add(name)
    import_path.check(_KEY, options.target)


def make(config: TaskConfig, options: StepOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return StepTask(config, options, data)


class StepTask(Supervised):
    """The names and arrays of a custom step; its losses and metrics are computed by the engine, see `own_step`.

    Attributes:
      path: import path of the user's class.
      exported: name of the model that evaluations with outputs, exports and logged models take; empty: the first.
    """

    runs_user_code = True
    keeps_outputs = False
    own_step = True

    def __init__(self, config: TaskConfig, options: StepOptions, data: TaskData) -> None:
        """Imports the class; see `runner.task.registry.make_task`."""
        array_roles = roles(config, data.arrays, needs_target=False)
        super().__init__(array_roles, data.arrays, directions(options))
        self.arrays = dict(data.arrays)
        self.outputs = output_spec(array_roles, data.arrays, None)
        self.step_metrics = step_metrics(options)
        self.path = options.target
        self.exported = options.exported
        self._class = import_path.load(options.target, _KEY)
        import_path.check_options("task.arguments", options.target, self._class, options.arguments)
        self._arguments = dict(options.arguments)

    def make_step(self) -> Any:
        """Returns a new instance of the user's class."""
        return self._class(**self._arguments)

    def scaled(self, ops: Arrays, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns a batch's arrays as models take them: floats as float32, bytes of images in [0, 1]; and `weight`."""
        arrays = {}
        for name, array in batch.items():
            if name in self.arrays:
                array = self._scaled(ops, name, array)
            arrays[name] = array
        return arrays

    def loss(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Is never called: the user's class computes the loss."""
        raise NotImplementedError

    def metrics(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Is never called: the user's class computes the metrics."""
        raise NotImplementedError

    def totals(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Is never called: the engine adds up the metrics of the user's class."""
        raise NotImplementedError

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the means of the metrics."""
        examples = max(float(totals[EXAMPLES]), 1.0)
        return {name: float(totals[name]) / examples for name in self.directions if name != LOSS}

    def check(self, shape: Sequence[int | None]) -> None:
        """Accepts any output: the user's class reads it."""

    def check_named(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Accepts any outputs: the user's class reads them."""

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the metrics."""
        del source, split
        rows = [(name, value) for name, value in evaluation.metrics.items() if name != LOSS]
        if not rows:
            return Report({}, {})
        return Report({}, {"metrics": (("metric", "value"), rows)})
