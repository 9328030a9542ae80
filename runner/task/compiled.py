# ruff: noqa: D102 - a task overrides what Task documents
"""The loss and the metrics of a model's own `compile`, computed by Keras's own code as `fit` calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array
from runner.errors import ConfigError
from runner.task.base import Outputs, OutputSpec, TaskData
from runner.task.custom import OfUser, output_spec
from runner.task.keras_metrics import KINDS
from runner.task.metrics import MINIMIZE
from runner.task.supervised import default_target


@dataclass(frozen=True)
class Compile:
    """Keras's optimizer, `CompileLoss` and `CompileMetrics` of a model; None: compiled without.

    `mask_rows` makes Keras leave the rows that are False (B,) out of its means, in addition to those of masks.
    """

    optimizer: Any
    loss: Any
    metrics: Any
    mask_rows: Callable[[Outputs, Tensor], None]

    @property
    def variables(self) -> list[Any]:
        """The sums of Keras's metrics, those of the losses of several outputs last."""
        return [variable for owner in (self.metrics, self.loss) if owner for variable in owner.variables]

    def results(self) -> dict[str, Tensor]:
        """Returns the present value of each metric by its name in `fit`."""
        of_outputs = self.loss.metrics if self.loss else ()
        return {**(self.metrics.result() if self.metrics else {}), **{mean.name: mean.result() for mean in of_outputs}}


class Compiled(OfUser):
    """What a model was compiled with. The loss of an example is that of its batch, which Keras computes as one number.

    Training steps have the metrics of which Keras averages the batches of an epoch, evaluations have all of them.

    Attributes:
      compile: of the model; None: none has been built yet.
    """

    reads_batch = True
    runs_user_code = False
    of_model = True
    weighs_positions = True
    step_metrics: tuple[str, ...] = ()
    compile: Compile | None = None
    _keras: ModuleType
    # Names of the outputs that the targets belong to; empty: there is one target, or they are in the outputs' order.
    _names: Sequence[str] = ()

    def __init__(self, config: TaskConfig, options: Any, data: TaskData) -> None:
        if config.inputs is None:
            others = {config.example_weight, *(config.target or default_target(data.arrays))}
            config = replace(config, inputs=[name for name in data.arrays if name not in others])
        super().__init__(config, options, data)
        targets = [data.arrays[name] for name in self.target_names]
        self.outputs = output_spec(self.target_names, data.arrays, None)
        if any(np.dtype(spec.dtype).kind in "iu" and not spec.names for spec in targets):
            self.outputs = OutputSpec(None)  # numbers of classes, whose count the model knows

    def take(self, compiled: Compile, keras: ModuleType, outputs: Outputs, output_names: Sequence[str]) -> None:
        """Takes a model's compile, given its outputs, and their names if it is functional."""
        self.compile = compiled
        self._keras = keras
        if isinstance(outputs, Mapping):
            output_names = list(outputs)
        if len(output_names) > 1 and set(self.target_names) <= set(output_names):
            self._names = self.target_names

    def computed(self, outputs: Outputs, batch: Mapping[str, Tensor], *, all_of_it: bool = True) -> Any:
        """Returns Keras's loss of a batch, its metrics by name, and the values of their variables.

        The first call makes Keras's metrics, and so must not be part of a program.
        """
        compiled = self.compile
        assert compiled is not None
        targets = [batch[name] for name in self.target_names]
        y_true: Any = dict(zip(self._names, targets, strict=True)) if self._names else targets
        if len(targets) == 1 and not self._names:
            y_true = targets[0]
        weight = batch[self._example_weight] if self._example_weight else None
        if self.pads:
            compiled.mask_rows(outputs, batch[WEIGHT] > 0)
        zeros = [(variable, np.zeros(variable.shape, variable.dtype)) for variable in compiled.variables]
        with self._keras.StatelessScope(zeros) as scope:
            loss = compiled.loss(y_true, outputs, weight) if compiled.loss else self._keras.ops.zeros(())
            if not all_of_it:
                return loss, {}, []
            if compiled.metrics:
                compiled.metrics.update_state(y_true, outputs, weight)
            return loss, compiled.results(), [scope.get_current_value(variable) for variable in compiled.variables]

    def settle(self, results: Mapping[str, Tensor]) -> None:
        """Settles the metrics by those of a trace. Raises ConfigError for one that a run can't have."""
        assert self.compile is not None
        metrics = self.compile.metrics
        loss = self.compile.loss
        unweighted = [one for each in (metrics._flat_metrics if metrics else ()) if each for one in each.metrics]
        of_outputs = loss.metrics if loss else []
        made = [*(metrics.metrics if metrics else ()), *of_outputs]
        of_steps = []
        for (name, result), metric in zip(results.items(), made, strict=True):
            kind = type(metric)
            is_mean = kind.result is self._keras.metrics.Mean.result
            if np.prod(result.shape) != 1 or not (is_mean or kind.__module__.startswith("keras.")):
                problem = f"metric {name} ({kind.__name__}) has several values, or is a class of your own"
                fix = "give it an average or one threshold, or compile with a function (y_true, y_pred)"
                raise ConfigError(f"task=compiled: {problem}, whose batches may not add up; {fix}")
            if is_mean and (metric in unweighted or metric in of_outputs or not self._example_weight):
                of_steps.append(name)
            if metric in of_outputs or kind.__name__ in KINDS:
                direction = MINIMIZE if metric in of_outputs else KINDS[kind.__name__].direction
                self.directions = {**self.directions, name: direction}
        self.step_metrics = tuple(of_steps)

    def loss(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        loss, _, _ = self.computed(outputs, batch, all_of_it=False)
        return ops.cast(loss, "float32") * ops.ones_like(batch[WEIGHT])

    def metrics(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        _, results, _ = self.computed(outputs, batch)
        return {name: ops.cast(results[name], "float32") * ops.ones_like(batch[WEIGHT]) for name in self.step_metrics}

    def totals(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the sums of all metrics; an evaluation of a task that reads batches has no padding."""
        # Of arrays and no trace: a trial of what training does with padding, and it computes no totals.
        with suppress(TypeError):
            is_real = np.asarray(batch[WEIGHT]) > 0
            outputs, batch = self._keras.tree.map_structure(lambda array: array[is_real], (outputs, dict(batch)))
        _, _, values = self.computed(outputs, batch)
        return {str(number): ops.cast(value, "float32") for number, value in enumerate(values)}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        assert self.compile is not None
        state = [
            (one, np.asarray(totals[str(number)], one.dtype)) for number, one in enumerate(self.compile.variables)
        ]
        with self._keras.StatelessScope(state):
            return {name: float(np.asarray(value).reshape(())) for name, value in self.compile.results().items()}
