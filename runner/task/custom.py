"""A user's own loss and metrics: plain functions `(ops, outputs, batch) -> (B,)`, named by import paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from runner.config.schema_task import CustomOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource
from runner.errors import ConfigError, describe, invalid
from runner.host import import_path
from runner.task.base import LOSS, Evaluation, OutputSpec, Report, Tensor, model_dtype
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.namespace import Namespace
from runner.task.supervised import Roles, Supervised, counted, roles

Measure = Callable[[Namespace, Tensor, Mapping[str, Tensor]], Tensor]
_LOSS = "task._target_"
PARAMETERS = ("ops", "outputs", "batch")


def paths(options: CustomOptions) -> dict[str, tuple[str, str]]:
    """Returns the metrics: name -> (the config key that names it, full import path)."""
    module = options.target.rpartition(".")[0]
    found = {}
    for key in (MAXIMIZE, MINIMIZE):
        for path in getattr(options, key):
            found[path.rpartition(".")[2]] = (f"task.{key}", path if "." in path else f"{module}.{path}")
    return found


def directions(options: CustomOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation beside the loss, each with its better direction."""
    return {name: key.removeprefix("task.") for name, (key, _) in paths(options).items()}


def of_steps(options: CustomOptions) -> tuple[str, ...]:
    """Returns the metrics of a training step beside the loss."""
    return tuple(directions(options))


def check(options: CustomOptions) -> None:
    """Checks options, without a dataset and without importing what they name.

    Raises:
      ConfigError: there is no such function, or it does not take (ops, outputs, batch).
    """
    named = [(f"task.{key}", path) for key in (MAXIMIZE, MINIMIZE) for path in getattr(options, key)]
    names = [path.rpartition(".")[2] for _, path in named]
    for (key, path), name in zip(named, names, strict=True):
        if names.count(name) > 1 or name == LOSS:
            raise invalid(
                key,
                path,
                problem=f"a metric goes by its function's name, and {name} is "
                + ("the loss" if name == LOSS else "there twice"),
                fix="give the function another name",
            )
    for key, path in ((_LOSS, options.target), *paths(options).values()):
        import_path.check_function(key, path, PARAMETERS)


class Custom(Supervised):
    """What a user's functions say. They are given every array of the dataset, fractions as float32, and `weight`."""

    # Nothing keeps a user's function from comparing the rows of a batch, as a contrastive loss does.
    reads_batch = True

    def __init__(
        self,
        config: TaskConfig,
        options: CustomOptions,
        arrays: Mapping[str, ArraySpec],
        train: DataSource | None,
        constants: Mapping[str, Sequence[float]],
    ) -> None:
        """Takes what `runner.task.registry.make_task` does, with the options typed."""
        del train, constants
        found = roles(config, arrays, needs_target=False)
        super().__init__(found, arrays, directions(options))
        self.arrays = dict(arrays)
        self.outputs = self._wanted(found, options)
        self._loss_path = options.target
        self._loss: Measure = import_path.load(options.target, _LOSS)
        self._paths = paths(options)
        self._measures: dict[str, Measure] = {
            name: import_path.load(path, key) for name, (key, path) in self._paths.items()
        }
        self.step_metrics = tuple(self._measures)

    def _wanted(self, found: Roles, options: CustomOptions) -> OutputSpec:
        """Returns the units of the config, or those that the target has."""
        specs = [self.arrays[name] for name in found.target]
        if options.units is not None or not specs:
            return OutputSpec(options.units)
        names = specs[0].names if len(specs) == 1 else found.target
        if len(specs) == 1 and not specs[0].shape and np.dtype(specs[0].dtype).kind in "iu" and names:
            return OutputSpec(len(names), tuple(names))  # categories
        return OutputSpec(specs[0].shape[-1] if len(specs) == 1 and specs[0].shape else len(specs), ())

    def _called(self, key: str, path: str, measure: Measure, ops: Namespace, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns what a user's function gives, float32 (B,)."""
        given = {
            name: ops.cast(array, model_dtype(self.arrays[name]))
            if name in self.arrays and model_dtype(self.arrays[name]) == "float32" and not self.arrays[name].is_image
            else array
            for name, array in batch.items()
        }
        try:
            found = ops.cast(measure(ops, outputs, given), "float32")
        except ConfigError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise ConfigError(f"{key}={path}: it raised {describe(error)}; fix that function") from error
        size = next(iter(batch.values())).shape[0]
        if len(found.shape) != 1 or (None not in (found.shape[0], size) and found.shape[0] != size):
            raise ConfigError(
                f"{key}={path}: it gives shape {list(found.shape)}, allowed is one number an example, "
                "[batch]; average over the other dims, as ops.mean(..., axis=-1)"
            )
        return found

    def loss(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), times its weight."""
        return self._weighted(ops, self._called(_LOSS, self._loss_path, self._loss, ops, outputs, batch), batch)

    def metrics(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns each example's metrics (B,)."""
        return {
            name: self._called(*self._paths[name], measure, ops, outputs, batch)
            for name, measure in self._measures.items()
        }

    def totals(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the metrics' sums, and how many examples there are."""
        found = {name: counted(ops, batch, value, [0]) for name, value in self.metrics(ops, outputs, batch).items()}
        return found | {"examples": ops.sum(ops.cast(ops.greater(batch["weight"], 0.0), "float32"))}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics' means."""
        return {name: float(totals[name]) / max(float(totals["examples"]), 1.0) for name in self._measures}

    def check(self, shape: Sequence[int | None]) -> None:
        """Takes any output: what fits is known when the loss is traced."""

    def check_named(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Takes any outputs likewise, as the hidden layer and the head of which `ops.head_losses` makes the logits."""

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the metrics, with the function of each."""
        del source, split
        rows = [(name, evaluation.metrics[name], path) for name, (_, path) in self._paths.items()]
        return Report({}, {"metrics": (("metric", "value", "function"), rows)} if rows else {})
