"""Numbers: Keras's regression losses, MAE, RMSE and R2, predicted against true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.config.schema_task import RegressionOptions, TaskConfig
from runner.config.values import check_name
from runner.data.base import Array, ArraySpec, DataSource
from runner.errors import invalid
from runner.host.late import late
from runner.task import losses
from runner.task.base import BRIGHTEST, Evaluation, OutputSpec, Report, Table, Tensor, is_bytes
from runner.task.checks import check_output
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.multilabel import columns
from runner.task.namespace import Namespace
from runner.task.supervised import Supervised, counted, needed, read_columns, roles

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")

_CONSTANT = 1e-12  # of a column's mean square, what its variance is at least unless all its numbers are equal
_MOST_SHOWN = 10  # examples of the largest errors


def directions(options: RegressionOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation beside the loss, each with its better direction."""
    del options
    return {"mae": MINIMIZE, "rmse": MINIMIZE, "r2": MAXIMIZE}


def of_steps(options: RegressionOptions) -> tuple[str, ...]:
    """Returns the metrics of a training step beside the loss."""
    del options
    return ("mae",)


def check(options: RegressionOptions) -> None:
    """Checks options, without a dataset.

    Raises:
      ConfigError: a value that can't work, or a loss whose unit matters, of a target without one.
    """
    check_name("task.loss", options.loss, losses.NAMES)
    if options.standardize and options.loss in losses.OF_THE_UNIT:
        raise invalid(
            "task.standardize",
            True,
            problem=f"false with task.loss={options.loss}, which a shifted target changes",
            fix="leave it out, or set task.loss=mean_squared_error",
        )


class Regression(Supervised):
    """Numbers of any shape, of one array or of several columns of one number an example.

    Shapes: B examples, K columns: those of the target's last dim; dims between are averaged over.

    Attributes:
      column_names: in order.
    """

    def __init__(
        self,
        config: TaskConfig,
        options: RegressionOptions,
        arrays: Mapping[str, ArraySpec],
        train: DataSource | None,
        constants: Mapping[str, Sequence[float]],
    ) -> None:
        """Takes what `runner.task.registry.make_task` does, with the options typed."""
        super().__init__(roles(config, arrays), arrays, directions(options))
        self._options = options
        self._loss = losses.named(options.loss, options.delta)
        self.column_names, self._shape = self._columns()
        self.outputs = OutputSpec(len(self.column_names), self.column_names)
        self.step_metrics = of_steps(options)
        if options.standardize:
            self.constants = constants if "mean" in constants else self._statistics(train)
        self._mean = np.asarray(self.constants.get("mean", 0.0), np.float32)
        self._deviation = np.asarray(self.constants.get("deviation", 1.0), np.float32)

    def _columns(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Returns the names of the target's columns, and its shape."""
        specs = [self.arrays[name] for name in self.target_names]
        if any(np.dtype(spec.dtype).kind not in "biuf" for spec in specs):
            raise invalid("task.target", list(self.target_names), problem="arrays of numbers", fix="name others")
        for name, spec in zip(self.target_names, specs, strict=True):
            if not spec.shape and spec.names != tuple(map(str, range(len(spec.names)))):
                raise invalid(
                    "task.target",
                    name,
                    problem=f"numbers, and it holds the words {', '.join(spec.names[:2])}",
                    fix="name another array, or set task=classification",
                )
        if len(specs) > 1:
            if any(spec.shape not in ((), (1,)) for spec in specs):
                raise invalid(
                    "task.target",
                    list(self.target_names),
                    problem="one array of any shape, or several of one number an example",
                    fix="name one array alone, or store them as one",
                )
            return self.target_names, (len(specs),)
        shape = specs[0].shape or (1,)
        if shape == (1,):
            return self.target_names, shape
        return tuple(specs[0].names) or tuple(map(str, range(shape[-1]))), shape

    def _statistics(self, train: DataSource | None) -> dict[str, list[float]]:
        """Returns mean and standard deviation of the columns over the train split."""
        found = self._read(needed("task.standardize", True, train), None)
        flat = found.reshape(-1, found.shape[-1])
        deviation = flat.std(0)
        return {"mean": flat.mean(0).tolist(), "deviation": np.where(deviation > 0, deviation, 1.0).tolist()}

    def _read(self, source: DataSource, count: int | None) -> Array:
        """Returns float64 targets (N, ..., K) of a split."""
        held = read_columns(source, self.target_names, count)
        found = [np.asarray(held[name], np.float64) / self._brightest(name) for name in self.target_names]
        if len(found) > 1:
            return np.concatenate([each.reshape(-1, 1) for each in found], 1)
        return found[0].reshape(-1, *self._shape)

    def _brightest(self, name: str) -> float:
        return BRIGHTEST if is_bytes(self.arrays[name]) else 1.0

    def _target(self, ops: Namespace, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, ..., K) in the units that the model is trained in."""
        found = columns(ops, batch, self.target_names)
        if is_bytes(self.arrays[self.target_names[0]]):
            found = found / BRIGHTEST
        return (found - self._mean) / self._deviation if self.constants else found

    def _errors(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns output - target (B, ..., K) in the target's own units."""
        error = outputs - self._target(ops, batch)  # before the units: near numbers lose less than large ones
        return error * self._deviation if self.constants else error

    def loss(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B,) of each example's terms of the loss, times its weight."""
        terms = self._loss(ops, self._target(ops, batch), outputs)
        return self._weighted(ops, losses.mean_by_example(ops, terms), batch)

    def metrics(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns each example's mean absolute error."""
        return {"mae": losses.mean_by_example(ops, ops.abs(self._errors(ops, outputs, batch)))}

    def totals(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums of errors by column (K,), and the target's sums about the mean of the batch.

        About zero, float32 would lose the variance of numbers that are large and near each other.
        """
        target = self._target(ops, batch)
        error = self._errors(ops, outputs, batch)
        axes = range(len(target.shape) - 1)
        count = counted(ops, batch, ops.ones_like(target), axes)
        center = counted(ops, batch, target, axes) / count
        away = target - center
        return {
            "count": count,
            "absolute": counted(ops, batch, ops.abs(error), axes),
            "squared": counted(ops, batch, ops.square(error), axes),
            "center": center,
            "away": counted(ops, batch, away, axes),
            "spread": counted(ops, batch, ops.square(away), axes),
        }

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns sums that can be added up: the target's sum and sum of squares, in float64.

        Chan, Golub, LeVeque, Algorithms for Computing the Sample Variance (1983): the sums about the rounded mean give
        the exact mean, and the squares about it.
        """
        count = totals["count"]
        mean = totals["center"] + totals["away"] / count
        squares = totals["spread"] - totals["away"] ** 2 / count + count * mean**2
        kept = {name: totals[name] for name in ("count", "absolute", "squared")}
        return kept | {"targets": count * mean, "target_squares": squares}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the mean absolute error, the root of the mean squared one, and the mean of the columns' R2."""
        count = totals["count"].sum()
        return {
            "mae": float(totals["absolute"].sum() / count),
            "rmse": float(np.sqrt(totals["squared"].sum() / count)),
            "r2": float(np.mean(self._r2(totals))),
        }

    def _r2(self, totals: Mapping[str, Array]) -> Array:
        """Returns 1 - squared errors / squares about the mean (K,); of a constant 1 where it is met, else 0."""
        variation = totals["target_squares"] - totals["targets"] ** 2 / totals["count"]
        squared = totals["squared"] / self._deviation.astype(np.float64) ** 2
        varies = variation > _CONSTANT * totals["target_squares"]
        return np.where(varies, 1.0 - squared / np.where(varies, variation, 1.0), np.where(squared > 0, 0.0, 1.0))

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model gives numbers of the target's shape."""
        check_output(shape, self._shape, "as the target")

    def predictions(self, ops: Namespace, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the prediction (B, ..., K) in the target's own units."""
        del ops
        return {"prediction": outputs * self._deviation + self._mean if self.constants else outputs}

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the columns, the examples of the largest errors, and predicted against true."""
        totals = evaluation.totals
        files = dict[str, Callable[[Path], None]]()
        rows = [
            (name, float(absolute / count), float(np.sqrt(squared / count)), float(r2))
            for name, absolute, squared, count, r2 in zip(
                self.column_names,
                totals["absolute"],
                totals["squared"],
                totals["count"],
                self._r2(totals),
                strict=True,
            )
        ]
        tables: dict[str, Table] = {"target": (("target", "mae", "rmse", "r2"), rows)}
        count = len(evaluation.outputs)
        if not count:
            return Report(files, tables)
        true = self._read(source, count)
        predicted = self.predicted(evaluation.outputs)
        files["predicted.png"] = partial(
            pictures.predicted,
            true=true.reshape(-1, true.shape[-1]),
            predicted=predicted.reshape(-1, true.shape[-1]),
            names=self.column_names,
            split=split,
        )
        if true.ndim == 2 and true.shape[1] == 1:
            error = predicted[:, 0] - true[:, 0]
            largest = np.argsort(-np.abs(error), kind="stable")[:_MOST_SHOWN]
            shown = [(int(row), float(true[row, 0]), float(predicted[row, 0]), float(error[row])) for row in largest]
            tables["largest errors"] = (("example", "true", "predicted", "error"), shown)
        return Report(files, tables)

    def predicted(self, outputs: Array) -> Array:
        """Returns float64 predictions in the target's own units, of a model's outputs."""
        return outputs.astype(np.float64) * self._deviation + self._mean
