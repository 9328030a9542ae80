# ruff: noqa: D102 - a task overrides what Task documents
"""Regression: Keras's regression losses, MAE, RMSE and R2, and plots of predicted against true values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.arrays import of as numpy_functions
from runner.config.schema_task import RegressionOptions, TaskConfig
from runner.config.values import check_name
from runner.data.base import Array, DataSource
from runner.errors import invalid
from runner.host.late import late
from runner.task import keras_metrics, losses
from runner.task.base import BRIGHTEST, Evaluation, OutputSpec, Report, Shapes, Table, TaskData, is_bytes
from runner.task.keras_metrics import Compared
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.supervised import Supervised, check_output, columns, counted, is_one_number, is_real, read_columns

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")

# Rows of the table of the largest errors: enough to see a pattern, few enough for a terminal.
_MOST_SHOWN = 10


class Regression(Supervised):
    """Numbers of any shape, in one array or in several columns of one number per example.

    Shapes: B examples, K columns, which are the last dim of the target. Metrics are means over the dims between.

    Attributes:
      column_names: in order.
    """

    own_metrics = {"mae": MINIMIZE, "rmse": MINIMIZE, "r2": MAXIMIZE}  # noqa: RUF012 - as in the base class
    step_metrics = ("mae",)

    @classmethod
    def compared_by(cls, options: RegressionOptions) -> str:
        """Returns what the targets are to Keras's metrics: probabilities with a loss of these, else numbers."""
        if options.loss in losses.OF_PROBABILITIES:
            return keras_metrics.PROBABILITIES
        return keras_metrics.NUMBERS

    @classmethod
    def check_options(cls, options: RegressionOptions) -> None:
        """Checks the names of Keras's loss and metrics, and that logits suit the loss."""
        check_name(losses.KEY, options.loss, losses.NAMES)
        losses.check_options(options.loss_options)
        if options.from_logits and options.loss not in losses.WITH_LOGITS:
            problem = f"must be false with task.loss={options.loss}, which takes no logits"
            fix = f"remove task.from_logits, or set task.loss={losses.WITH_LOGITS[0]}"
            raise invalid("task.from_logits", True, problem=problem, fix=fix)
        keras_metrics.requested(options.metrics, cls.compared_by(options), cls.own_metrics)

    def __init__(self, config: TaskConfig, options: RegressionOptions, data: TaskData) -> None:
        super().__init__(config, options, data)
        self.column_names, self._shape = self._find_columns()
        # What the target is divided by; several columns are no images. A model that rescales its input has its target
        # in [0, 1] nevertheless, as of a sigmoid.
        self._scale = 1.0
        if is_bytes(self.arrays[self.target_names[0]]) and config.scale_images is not False:
            self._scale = BRIGHTEST
        self.outputs = OutputSpec(len(self.column_names), self.column_names)
        if options.from_logits:
            self.activation = losses.ACTIVATIONS[options.loss]
        self._settle_keras(len(self.column_names))

    def _find_columns(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        specs = [self.arrays[name] for name in self.target_names]
        targets = list(self.target_names)
        if any(np.dtype(spec.dtype).kind not in "biuf" for spec in specs):
            problem = "task=regression needs arrays of numbers"
            raise invalid("task.target", targets, problem=problem, fix="name other arrays")
        for name, spec in zip(self.target_names, specs, strict=True):
            # Categories that are numbers are called by these numbers; others are words.
            are_words = spec.names != tuple(map(str, range(len(spec.names))))
            if not spec.shape and are_words:
                problem = f"task=regression needs numbers, but it has categories: {', '.join(spec.names[:2])}, ..."
                fix = "name another array, or set task=classification"
                raise invalid("task.target", name, problem=problem, fix=fix)
        if len(specs) > 1:
            if not all(map(is_one_number, specs)):
                problem = "task=regression needs one array of any shape, or several of one number per example"
                raise invalid("task.target", targets, problem=problem, fix="name one array, or store them as one")
            return self.target_names, (len(specs),)
        shape = specs[0].shape or (1,)
        if shape == (1,):
            return self.target_names, shape
        return tuple(specs[0].names) or tuple(map(str, range(shape[-1]))), shape

    def _read(self, source: DataSource, count: int | None) -> Array:
        """Returns the float64 targets (N, ..., K) of a split."""
        arrays = read_columns(source, self.target_names, count)
        scaled = [np.asarray(arrays[name], np.float64) / self._scale for name in self.target_names]
        if len(scaled) > 1:
            return np.column_stack(scaled)
        return scaled[0].reshape(-1, *self._shape)

    def _target(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, ..., K)."""
        target = columns(ops, batch, self.target_names)
        if self._scale != 1.0:
            target = target / self._scale
        return target

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B,) of each example's loss terms, times its sample weight."""
        assert self._loss is not None
        terms = self._loss(ops, self._target(ops, batch), outputs)
        return self._weighted(ops, losses.mean_by_example(ops, terms), batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        error = self._probabilities_of(ops, outputs) - self._target(ops, batch)
        return {"mae": losses.mean_by_example(ops, ops.abs(error))}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums of errors per column (K,), and the target's sums about the mean of the batch.

        About zero, float32 would lose the variance of numbers that are large and near each other.
        """
        target = self._target(ops, batch)
        error = self._probabilities_of(ops, outputs) - target
        axes = range(len(target.shape) - 1)
        count = counted(ops, batch, ops.ones_like(target), axes)
        center = counted(ops, batch, target, axes) / count
        # The sum of large numbers is rounded, the differences from a number near them are exact. So the second center
        # is the mean to the last bit, and that of equal numbers is the number.
        center = center + counted(ops, batch, target - center, axes) / count
        deviation = target - center
        return {
            "count": count,
            "absolute": counted(ops, batch, ops.abs(error), axes),
            "squared": counted(ops, batch, ops.square(error), axes),
            "center": center,
            "away": counted(ops, batch, deviation, axes),
            "spread": counted(ops, batch, ops.square(deviation), axes),
            **self._keras_metrics.totals(ops, lambda: self._compared(ops, outputs, batch)),
        }

    def _compared(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        target = self._target(ops, batch)
        weight = ops.cast(is_real(ops, batch, len(self._shape)), "float32")
        # One number per vector of columns.
        weight = weight * ops.ones_like(ops.sum(target, axis=-1))
        return self._comparison(ops, outputs, batch, target, weight, ops.cast(ops.greater(target, 0.5), "float32"))

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns a batch's sums of errors, and the target's mean and its squares about that, in float64."""
        away = totals["away"] / totals["count"]
        return {
            "count": totals["count"],
            "absolute": totals["absolute"],
            "squared": totals["squared"],
            "mean": totals["center"] + away,
            "variation": np.maximum(totals["spread"] - totals["away"] * away, 0.0),
            **self._keras_metrics.kept(totals),
        }

    def joined(self, sums: Mapping[str, Array], addends: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums of all batches, with the target's squares about their common mean.

        Chan, Golub, LeVeque, Algorithms for Computing the Sample Variance (1983). Squares about zero, even in float64,
        would lose the variance of times in seconds.
        """
        joined = super().joined(sums, addends)
        difference = addends["mean"] - sums["mean"]
        share = addends["count"] / joined["count"]
        joined["mean"] = sums["mean"] + difference * share
        joined["variation"] += sums["count"] * share * difference**2
        return joined

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        count = totals["count"].sum()
        metrics = {
            "mae": float(totals["absolute"].sum() / count),
            "rmse": float(np.sqrt(totals["squared"].sum() / count)),
            "r2": float(np.mean(self._r2(totals))),
        }
        return {**metrics, **self._keras_metrics.results(totals)}

    def _r2(self, totals: Mapping[str, Array]) -> Array:
        """Returns 1 - squared errors / squares about the mean (K,); for a constant column 1 without errors, else 0."""
        variation = totals["variation"]
        squared = totals["squared"]
        varies = variation > 0
        r2 = 1.0 - squared / np.where(varies, variation, 1.0)
        r2_of_constant = np.where(squared > 0, 0.0, 1.0)
        return np.where(varies, r2, r2_of_constant)

    def check(self, shapes: Shapes) -> None:
        check_output(shapes, self._shape, "the shape of the target")

    def predictions(self, ops: Arrays, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the prediction (B, ..., K)."""
        return {"prediction": self._probabilities_of(ops, outputs)}

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the columns, the largest errors, and plots of predicted against true values."""
        totals = evaluation.totals
        mae = totals["absolute"] / totals["count"]
        rmse = np.sqrt(totals["squared"] / totals["count"])
        r2 = self._r2(totals)
        rows = list(zip(self.column_names, mae.tolist(), rmse.tolist(), r2.tolist(), strict=True))
        tables: dict[str, Table] = {"target": (("target", "mae", "rmse", "r2"), rows)}
        count = len(evaluation.outputs)
        if not count:
            return Report({}, tables)
        true = self._read(source, count)
        outputs = evaluation.outputs.astype(np.float64)
        predicted = self.predictions(numpy_functions(np), outputs)["prediction"]
        if true.ndim == 2 and true.shape[1] == 1:
            tables["largest errors"] = _largest_errors(true[:, 0], predicted[:, 0])
        files: dict[str, Callable[[Path], None]] = {
            "predicted.png": partial(
                pictures.predicted,
                true=true.reshape(-1, true.shape[-1]),
                predicted=predicted.reshape(-1, true.shape[-1]),
                names=self.column_names,
                split=split,
            )
        }
        return Report(files, tables)


def _largest_errors(true: Array, predicted: Array) -> Table:
    error = predicted - true
    shown = np.argsort(-np.abs(error), kind="stable")[:_MOST_SHOWN]
    rows = zip(shown.tolist(), true[shown].tolist(), predicted[shown].tolist(), error[shown].tolist(), strict=True)
    return ("example", "true", "predicted", "error"), list(rows)
