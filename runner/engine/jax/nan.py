"""The layer that makes NaN or Inf of finite numbers, in an eager call of the model with its initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from runner import arrays
from runner.data.base import Batch
from runner.engine.jax import private
from runner.engine.layer_notes import layer_path
from runner.task.base import Task


def cause(model: keras.Model, task: Task, batch: Batch) -> str:
    """Returns what makes a batch's loss NaN or Inf, in words with a fix.

    Args:
      model: on one device, with initial weights.
      task: of the run.
      batch: arrays (B, ...) of finite numbers.
    """
    for variable in model.weights:
        if not _is_finite(variable.value):
            return f"the initial value of variable {variable.path} has NaN or Inf; correct its initializer or its file"
    found: list[str] = []

    def watched(layer: keras.Layer, call: Callable[..., object]) -> Callable[..., object]:
        def watched_call(*args: object, **kwargs: object) -> object:
            outputs = call(*args, **kwargs)
            # Inner layers return before the layers that call them, so the first one found is the innermost.
            if not found and not _is_finite(outputs):
                found.append(_of_layer(layer, args, kwargs))
            return outputs

        return watched_call

    with private.calls_replaced(private.all_layers(model), watched):
        outputs = model(task.inputs(arrays.of(jnp), batch), **private.training_argument(model, training=True))
    if found:
        return found[0]
    if not _is_finite(outputs):
        return "the model's call makes NaN or Inf of its layers' outputs; look for a division by 0 there"
    return (
        "the model's outputs are finite, so it comes from the loss; look there for a division by 0 and a logarithm of "
        "0 (for outputs that are no probabilities, task.from_logits=true), for weights that are all 0, and for what "
        "layers add to the loss"
    )


def _of_layer(layer: keras.Layer, args: Any, kwargs: Any) -> str:
    """Returns what is wrong with a layer whose outputs are the first that are NaN or Inf."""
    place = f"layer {layer_path(layer.name)} ({type(layer).__name__})"
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves((args, kwargs)) if hasattr(leaf, "shape")]
    if isinstance(layer, keras.layers.Embedding) and inputs and inputs[0].size:
        low, high = int(inputs[0].min()), int(inputs[0].max())
        if low < 0 or high >= layer.input_dim:
            wrong = low if low < 0 else high
            return (
                f"{place} gets the id {wrong}, but its ids are from 0 to {layer.input_dim - 1}; give it an input_dim "
                "above the largest id, or correct the ids"
            )
    if not _is_finite(inputs):
        return f"an operation before {place} makes NaN or Inf of finite numbers; look for a division by 0 there"
    return f"{place} makes NaN or Inf of finite numbers; look for a division by 0 or an overflow there"


def _is_finite(values: object) -> bool:
    for leaf in jax.tree.leaves(values):
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        # Inside of a function that JAX traces, such as a scan, a layer's outputs have no values.
        if is_float and not isinstance(leaf, jax.core.Tracer) and not bool(jnp.isfinite(leaf).all()):
            return False
    return True
