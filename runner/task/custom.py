# ruff: noqa: D102 - a task overrides what Task documents
"""The user's own code: a loss and metrics, functions `(ops, outputs, batch) -> (B,)`; or a class that computes steps.

See docs/custom_steps.md for the class. The engine calls it; its task has the names of its metrics and the roles of the
dataset's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config import import_path
from runner.config.schema_task import CustomOptions, StepOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.errors import ConfigError, invalid
from runner.task.base import LOSS, OutputSpec, Shapes, TaskData, model_dtype
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.supervised import Supervised, counted

# A user's function: (ops, outputs, batch) -> (B,).
Measure = Callable[[Arrays, Tensor, Mapping[str, Tensor]], Tensor]
PARAMETERS = ("ops", "outputs", "batch")
_KEY = "task._target_"
# The total of an evaluation that counts its examples; the others have the names of metrics.
EXAMPLES = "examples"


@dataclass(frozen=True)
class UserFunction:
    """A user's loss or metric, `(ops, outputs, batch) -> (B,)`.

    Attributes:
      key: of the config, for messages.
      path: import path.
      name: of the metric; `loss`.
      direction: `maximize` or `minimize`.
    """

    key: str
    path: str
    name: str
    direction: str

    @cached_property
    def loaded(self) -> Measure:
        """The function, imported. Raises ConfigError if there is none, or it takes other arguments."""
        function: Measure = import_path.load(self.path, self.key)
        import_path.check_positional(self.key, self.path, function, PARAMETERS)
        return function

    def __call__(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B,). Raises ConfigError if the function raises, or returns another shape."""
        try:
            result = ops.cast(self.loaded(ops, outputs, batch), "float32")
        except ConfigError:
            raise
        except Exception as error:  # A user's function may raise anything.
            problem = f"it raised {import_path.raised(error)}"
            raise ConfigError(f"{self.key}={self.path}: {problem}; fix that function") from error
        # A traced array may have an unknown batch dim.
        size = next(iter(batch.values())).shape[0]
        is_vector = len(result.shape) == 1
        if not is_vector or (None not in (result.shape[0], size) and result.shape[0] != size):
            raise ConfigError(
                f"{self.key}={self.path}: it returns shape {list(result.shape)}, but must return one number per "
                "example, [batch]; average over the other dims, such as ops.mean(..., axis=-1)"
            )
        return result


def functions_of(options: CustomOptions) -> list[UserFunction]:
    """Returns the loss, and after it the metrics."""
    functions = [UserFunction(_KEY, options.target, LOSS, MINIMIZE)]
    module = options.target.rpartition(".")[0]
    for direction, paths in ((MAXIMIZE, options.maximize), (MINIMIZE, options.minimize)):
        for path in paths:
            name = path.rpartition(".")[2]
            if name == path:
                path = f"{module}.{name}"
            functions.append(UserFunction(f"task.{direction}", path, name, direction))
    return functions


def output_spec(target: Sequence[str], arrays: Mapping[str, ArraySpec], units: int | None) -> OutputSpec:
    """Returns the output that a custom loss needs: the config's number of units, or that of the target (None)."""
    specs = [arrays[name] for name in target]
    if units is not None or not specs:
        return OutputSpec(units)
    if len(specs) > 1:
        return OutputSpec(len(specs))
    spec = specs[0]
    if spec.shape:
        return OutputSpec(spec.shape[-1])
    is_category = np.dtype(spec.dtype).kind in "iu" and bool(spec.names)
    if is_category:
        return OutputSpec(len(spec.names), tuple(spec.names))
    return OutputSpec(1)


class OfUser(Supervised):
    """A task whose results are a user's: any arrays, any outputs, and metrics that are means over the examples."""

    runs_user_code = True

    def __init__(self, config: TaskConfig, options: Any, data: TaskData) -> None:
        super().__init__(config, options, data, needs_target=False)
        # The user's code sees every array, not only those that have a role.
        self.arrays = dict(data.arrays)

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        examples = max(float(totals[EXAMPLES]), 1.0)
        return {name: float(totals[name]) / examples for name in self.directions if name != LOSS}

    def check(self, shapes: Shapes) -> None:
        """Accepts any outputs: whether they fit is known when the user's code is traced."""


class Custom(OfUser):
    """A user's functions. Their batch has every array of the dataset, with floats as float32, and `weight`."""

    # Nothing keeps a user's function from comparing the rows of a batch, as a contrastive loss does.
    reads_batch = True

    @classmethod
    def metric_directions(cls, options: CustomOptions) -> dict[str, str]:
        return {metric.name: metric.direction for metric in functions_of(options)[1:]}

    @classmethod
    def step_metric_names(cls, options: CustomOptions) -> tuple[str, ...]:
        """Returns the same names: a step has all metrics."""
        return tuple(cls.metric_directions(options))

    @classmethod
    def check_options(cls, options: CustomOptions) -> None:
        """Checks that the packages exist, without importing the functions, and that no two metrics have one name."""
        names = set()
        for function in functions_of(options):
            if function.name in names:
                owner = "another metric"
                if function.name == LOSS:
                    owner = "the loss"
                problem = f"a metric is named after its function, and {owner} is named {function.name}"
                raise invalid(function.key, function.path, problem=problem, fix="rename the function")
            names.add(function.name)
            import_path.check(function.key, function.path)

    def __init__(self, config: TaskConfig, options: CustomOptions, data: TaskData) -> None:
        super().__init__(config, options, data)
        self.outputs = output_spec(self.target_names, data.arrays, options.units)
        self._user_loss, *self._user_metrics = functions_of(options)
        for function in (self._user_loss, *self._user_metrics):
            _ = function.loaded  # an import that fails is reported here, not in the middle of a trace

    def _as_float32(self, ops: Arrays, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        arrays = {}
        for name, array in batch.items():
            spec = self.arrays.get(name)
            is_float = spec is not None and not spec.is_image and model_dtype(spec) == "float32"
            if is_float:
                array = ops.cast(array, "float32")
            arrays[name] = array
        return arrays

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), times its sample weight."""
        return self._weighted(ops, self._user_loss(ops, outputs, self._as_float32(ops, batch)), batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        arrays = self._as_float32(ops, batch)
        return {metric.name: metric(ops, outputs, arrays) for metric in self._user_metrics}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        totals = {}
        for name, value_b in self.metrics(ops, outputs, batch).items():
            totals[name] = counted(ops, batch, value_b, [0])
        is_real_b = ops.greater(batch[WEIGHT], 0.0)
        totals[EXAMPLES] = ops.sum(ops.cast(is_real_b, "float32"))
        return totals


class StepTask(OfUser):
    """The names and arrays of a custom step. A user's class computes the rest, which the engine calls: see `own_step`.

    Attributes:
      path: import path of the user's class.
      exported: name of the model that evaluations with outputs, exports and logged models take; empty: the first.
    """

    keeps_outputs = False
    own_step = True

    @classmethod
    def metric_directions(cls, options: StepOptions) -> dict[str, str]:
        return {**dict.fromkeys(options.maximize, MAXIMIZE), **dict.fromkeys(options.minimize, MINIMIZE)}

    @classmethod
    def step_metric_names(cls, options: StepOptions) -> tuple[str, ...]:
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
        super().__init__(config, options, data)
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

    # Part of every task, and not of this one.
    def _computed_by_engine(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the engine calls the user's class")

    loss = _computed_by_engine
    metrics = _computed_by_engine
    totals = _computed_by_engine
