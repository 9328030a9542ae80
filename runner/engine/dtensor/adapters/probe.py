"""Trial calls of a plain model: which variables a training call changes, and whether an evaluation does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from runner.config.schema import ModelConfig
from runner.data.base import Array, Batch
from runner.engine.base import as_called
from runner.engine.dtensor.arrays import host_values
from runner.engine.dtensor.operations import masks_from_scope
from runner.engine.mappings import map_values, without
from runner.model import contract, padding, scope
from runner.task.base import DataSpec

Variables = Mapping[str, tf.Variable]


def check_kept(
    model: tf.Module, variables: Variables, config: ModelConfig, data: DataSpec, seed: int, *, pads: bool
) -> None:
    """Rejects an evaluation that changes a variable, and padding that counts in one, in a loss or in other rows.

    A model of tf_keras's own layers is not called, unless batches are padded and it has variables without gradients.
    """
    # A user's code may be in the model's own `call`, so the model is one of the layers.
    layers = [model, *model.submodules]
    kept = without(variables, model.trainable_variables)
    has_own_code = contract.has_own_code(layers)
    if kept and has_own_code:
        _check_evaluation(model, variables, kept, config, data)
    if not pads:
        return
    if not (kept or has_own_code or contract.has_activity_loss(layers)):
        return

    def call(batch: Batch) -> tuple[list[Array], list[Array]]:
        training = scope.Scope(seed, tf.constant(0))
        with _unchanged(variables), scope.enter(training), masks_from_scope(model):
            outputs = model(_model_inputs(batch), training=True)
            losses = [loss.numpy() for loss in getattr(model, "losses", ())]
            return [*host_values(kept).values(), *losses], [output.numpy() for output in tf.nest.flatten(outputs)]

    padding.check(call, data.inputs)


def _check_evaluation(
    model: tf.Module, variables: Variables, kept: Variables, config: ModelConfig, data: DataSpec
) -> None:
    before = host_values(kept)
    batch = {name: np.zeros((2, *spec.shape), spec.dtype) for name, spec in data.inputs.items()}
    with _unchanged(variables):
        model(_model_inputs(batch), training=False)
        for path, variable in kept.items():
            if not np.array_equal(variable.numpy(), before[path], equal_nan=True):
                raise contract.changed_by_evaluation(path, config)


@contextmanager
def _unchanged(variables: Variables) -> Iterator[None]:
    before = host_values(variables)
    try:
        yield
    finally:
        for path, variable in variables.items():
            variable.assign(before[path])


def _model_inputs(batch: Mapping[str, Array]) -> tf.Tensor | dict[str, tf.Tensor]:
    return as_called(map_values(tf.constant, batch))
