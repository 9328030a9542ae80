"""A custom step: a user's class that computes updates, losses and metrics with its own models and optimizers.

See docs/custom_steps.md for the class. The engine calls it; the task has the names of its metrics and the roles of the
dataset's arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import StepOptions, TaskConfig
from runner.data.base import Array
from runner.errors import invalid
from runner.host import import_path
from runner.task.base import LOSS, Shapes, TaskData
from runner.task.custom import output_spec
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.supervised import Supervised

# The total of an evaluation that counts its examples; the others have the names of metrics.
EXAMPLES = "examples"
_KEY = "task._target_"


class StepTask(Supervised):
    """The names and arrays of a custom step; its losses and metrics are computed by the engine, see `own_step`.

    Attributes:
      path: import path of the user's class.
      exported: name of the model that evaluations with outputs, exports and logged models take; empty: the first.
    """

    runs_user_code = True
    keeps_outputs = False
    own_step = True

    @classmethod
    def metric_directions(cls, options: StepOptions) -> dict[str, str]:
        """Returns the metrics of the user's class that the config names."""
        return {**dict.fromkeys(options.maximize, MAXIMIZE), **dict.fromkeys(options.minimize, MINIMIZE)}

    @classmethod
    def step_metric_names(cls, options: StepOptions) -> tuple[str, ...]:
        """Returns the metrics of `train_step` that the config names."""
        return tuple(options.log)

    @classmethod
    def check_options(cls, options: StepOptions) -> None:
        """Checks that there is such a package, without importing the class, and that no metric has a name twice."""
        for key, names in (("task.log", options.log), ("task.maximize", [*options.maximize, *options.minimize])):
            known = {LOSS, EXAMPLES}
            for name in names:
                if name in known:
                    fix = f"remove it from {key}; {LOSS} is always a metric, and {EXAMPLES} is reserved"
                    raise invalid(key, name, problem="a metric must have a name of its own", fix=fix)
                known.add(name)
        import_path.check(_KEY, options.target)

    def __init__(self, config: TaskConfig, options: StepOptions, data: TaskData) -> None:
        super().__init__(config, options, data, needs_target=False)
        self.arrays = dict(data.arrays)
        self.outputs = output_spec(self.target_names, data.arrays, None)
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

    def _computed_by_engine(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError

    # Never called: the engine calls the user's class, and adds up its metrics.
    loss = _computed_by_engine
    metrics = _computed_by_engine
    totals = _computed_by_engine

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the means of the metrics."""
        examples = max(float(totals[EXAMPLES]), 1.0)
        return {name: float(totals[name]) / examples for name in self.directions if name != LOSS}

    def check(self, shapes: Shapes) -> None:
        """Accepts any outputs: the user's class reads them."""
