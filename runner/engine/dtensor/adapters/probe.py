"""Trial calls of a plain tf_keras model: what a training call keeps, and what an evaluation would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import tensorflow as tf
import tf_keras

from runner.config.schema import RunConfig
from runner.data.base import Array, Batch
from runner.engine.base import as_called
from runner.engine.dtensor import masks
from runner.errors import ConfigError
from runner.model import contract, padding, scope
from runner.task.base import DataSpec

Variables = Mapping[str, tf.Variable]


def check_kept(model: tf_keras.Model, variables: Variables, config: RunConfig, data: DataSpec) -> None:
    """Checks what calls of a model leave in the variables that no gradient changes.

    A model of tf_keras's own layers costs nothing here, but where batches are padded and it has such variables.

    Args:
      model: plain, of one device.
      variables: all of its own, by canonical path.
      config: the run's.
      data: what the engine is built for.

    Raises:
      ConfigError: an evaluation changes one; padding would count in one, in an added loss or in other examples.
    """
    layers = [model, *model.submodules]
    trained = {id(variable) for variable in model.trainable_variables}
    kept = {path: variable for path, variable in variables.items() if id(variable) not in trained}
    pads = config.dataset.remainder == "pad"
    own = contract.has_own_code(layers)
    if kept and own:
        _check_evaluation(model, variables, kept, config, data)
    if pads and (kept or own or contract.has_activity_loss(layers)):

        def call(batch: Batch) -> padding.CallResult:
            entered = scope.Scope(config.trainer.seed, tf.constant(0))
            with _unchanged(variables), scope.enter(entered), masks.handed_in(model):
                outputs = model(_taken(batch), training=True)
                values = {path: variable.numpy() for path, variable in kept.items()}
                losses, given = ([each.numpy() for each in part] for part in (model.losses, tf.nest.flatten(outputs)))
            return padding.CallResult(values, losses, given)

        before = {path: variable.numpy() for path, variable in kept.items()}
        padding.check(call, data.inputs, before, config.trainer.accumulate_steps)


def _check_evaluation(
    model: tf_keras.Model, variables: Variables, kept: Variables, config: RunConfig, data: DataSpec
) -> None:
    before = {path: variable.numpy() for path, variable in kept.items()}
    batch = {name: np.zeros((2, *spec.shape), spec.dtype) for name, spec in data.inputs.items()}
    with _unchanged(variables):
        model(_taken(batch), training=False)
        changed = [path for path, v in kept.items() if not np.array_equal(v.numpy(), before[path], equal_nan=True)]
    if changed:
        raise ConfigError(
            f"model._target_={config.model.target}: variable {changed[0]} is changed by a call with "
            "training=False, and an evaluation may change nothing; change it where `training` is true"
        )


@contextmanager
def _unchanged(variables: Variables) -> Iterator[None]:
    """Puts all variables back as they were, when the context ends."""
    before = {path: variable.numpy() for path, variable in variables.items()}
    try:
        yield
    finally:
        for path, variable in variables.items():
            variable.assign(before[path])


def _taken(batch: Mapping[str, Array]) -> tf.Tensor | dict[str, tf.Tensor]:
    """Returns what a model is called with: its one input, or all by name."""
    return as_called({name: tf.constant(array) for name, array in batch.items()})
