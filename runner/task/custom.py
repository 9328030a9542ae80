# ruff: noqa: D102 - a task overrides what Task documents
"""The user's own code: a loss and metrics, functions `(ops, outputs, batch) -> (B,)`; or a class that computes steps.

See docs/custom_steps.md for the class. The engine calls it; its task has the names of its metrics and the roles of the
dataset's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config import import_path
from runner.config.schema_task import CustomOptions, StepOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec
from runner.errors import ConfigError, describe, invalid
from runner.task.base import LOSS, OutputSpec, Shapes, TaskData, model_dtype
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.supervised import Supervised, counted

# A user's function: (ops, outputs, batch) -> (B,).
Measure = Callable[[Arrays, Tensor, Mapping[str, Tensor]], Tensor]
PARAMETERS = ("ops", "outputs", "batch")
_KEY = "task._target_"
# The total of an evaluation that counts its examples; the others have the names of metrics.
EXAMPLES = "examples"


def metrics_of(options: CustomOptions) -> dict[str, tuple[str, str]]:
    """Returns `maximize` or `minimize`, and the import path, of each metric by the name of its function."""
    loss_module = options.target.rpartition(".")[0]
    metrics = {}
    for direction, paths in ((MAXIMIZE, options.maximize), (MINIMIZE, options.minimize)):
        for path in paths:
            name = path.rpartition(".")[2]
            metrics[name] = (direction, path if "." in path else f"{loss_module}.{path}")
    return metrics


def _loaded(path: str, key: str) -> Measure:
    function: Measure = import_path.load(path, key)
    import_path.check_positional(key, path, function, PARAMETERS)
    return function


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


class Custom(Supervised):
    """A user's functions. Their batch has every array of the dataset, with floats as float32, and `weight`."""

    # Nothing keeps a user's function from comparing the rows of a batch, as a contrastive loss does.
    reads_batch = True
    runs_user_code = True

    @classmethod
    def metric_directions(cls, options: CustomOptions) -> dict[str, str]:
        return {name: direction for name, (direction, _) in metrics_of(options).items()}

    @classmethod
    def step_metric_names(cls, options: CustomOptions) -> tuple[str, ...]:
        """Returns the same names: a step has all metrics."""
        return tuple(metrics_of(options))

    @classmethod
    def check_options(cls, options: CustomOptions) -> None:
        """Checks that the packages exist, without importing the functions, and that no two metrics have one name."""
        owners = {LOSS: "the loss"}
        for direction, paths in ((MAXIMIZE, options.maximize), (MINIMIZE, options.minimize)):
            for path in paths:
                name = path.rpartition(".")[2]
                if name in owners:
                    problem = f"a metric is named after its function, and {owners[name]} is named {name}"
                    raise invalid(f"task.{direction}", path, problem=problem, fix="rename the function")
                owners[name] = "another metric"
        import_path.check(_KEY, options.target)
        for direction, path in metrics_of(options).values():
            import_path.check(f"task.{direction}", path)

    def __init__(self, config: TaskConfig, options: CustomOptions, data: TaskData) -> None:
        super().__init__(config, options, data, needs_target=False)
        self.arrays = dict(data.arrays)
        self.outputs = output_spec(self.target_names, data.arrays, options.units)
        self._loss_path = options.target
        self._function = _loaded(options.target, _KEY)
        self._metrics = metrics_of(options)
        self._functions: dict[str, Measure] = {}
        for name, (direction, path) in self._metrics.items():
            self._functions[name] = _loaded(path, f"task.{direction}")

    def _call(
        self, key: str, path: str, function: Measure, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]
    ) -> Tensor:
        """Returns the result of a user's function as float32 (B,)."""
        arrays = {name: self._as_float32(ops, name, array) for name, array in batch.items()}
        try:
            result = ops.cast(function(ops, outputs, arrays), "float32")
        except ConfigError:
            raise
        except Exception as error:  # A user's function may raise anything.
            raise ConfigError(f"{key}={path}: it raised {describe(error)}; fix that function") from error
        # A traced array may have an unknown batch dim.
        size = next(iter(batch.values())).shape[0]
        is_vector = len(result.shape) == 1
        if not is_vector or (None not in (result.shape[0], size) and result.shape[0] != size):
            raise ConfigError(
                f"{key}={path}: it returns shape {list(result.shape)}, but must return one number per example, "
                "[batch]; average over the other dims, such as ops.mean(..., axis=-1)"
            )
        return result

    def _as_float32(self, ops: Arrays, name: str, array: Tensor) -> Tensor:
        spec = self.arrays.get(name)
        if spec is None or spec.is_image or model_dtype(spec) != "float32":
            return array
        return ops.cast(array, "float32")

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), times its sample weight."""
        loss_b = self._call(_KEY, self._loss_path, self._function, ops, outputs, batch)
        return self._weighted(ops, loss_b, batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = {}
        for name, function in self._functions.items():
            direction, path = self._metrics[name]
            values[name] = self._call(f"task.{direction}", path, function, ops, outputs, batch)
        return values

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = self.metrics(ops, outputs, batch)
        totals = {name: counted(ops, batch, value_b, [0]) for name, value_b in values.items()}
        is_real_b = ops.greater(batch[WEIGHT], 0.0)
        return {**totals, EXAMPLES: ops.sum(ops.cast(is_real_b, "float32"))}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        examples = max(float(totals[EXAMPLES]), 1.0)
        return {name: float(totals[name]) / examples for name in self._functions}

    def check(self, shapes: Shapes) -> None:
        """Accepts any outputs: whether they fit is known when the loss is traced."""


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
        examples = max(float(totals[EXAMPLES]), 1.0)
        return {name: float(totals[name]) / examples for name in self.directions if name != LOSS}

    def check(self, shapes: Shapes) -> None:
        """Accepts any outputs: the user's class reads them."""
