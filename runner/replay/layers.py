"""Outputs of a model's layers for one batch, on one device."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from runner import arrays
from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import Engine
from runner.engine.registry import make_plain
from runner.task.base import DataSpec


def layer_outputs(config: RunConfig, spec: DataSpec, engine: Engine, batch: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs of the layers of a Keras model, in the order of its layers.

    They are those of an evaluation: without dropout, and with moving averages in place of a batch's statistics.

    Args:
      config: checked.
      spec: of the data.
      engine: built, with the weights.
      batch: arrays (B, ...) by name.

    Returns:
      Name of the layer -> its output; `<layer>/<i>` if it has several. Empty if the model is not a graph of Keras
      layers.
    """
    if spec.task.own_step:
        return {}
    plain = make_plain(config, spec, engine.state())
    model = plain.keras
    inputs = spec.task.inputs(arrays.of(np), batch)
    names, tensors = _tensors(model)
    if not tensors:
        return {}
    # In the package that made the layers, tf_keras or Keras 3: neither takes the symbolic tensors of the other.
    inner = import_module(plain.package).Model(model.inputs, tensors)
    outputs = inner(inputs, training=False)
    if not isinstance(outputs, list | tuple):
        outputs = [outputs]
    return {name: np.asarray(output) for name, output in zip(names, outputs, strict=True)}


def _tensors(model: Any) -> tuple[list[str], list[Any]]:
    """Returns the names and the symbolic outputs of a model's layers, without its inputs."""
    names: list[str] = []
    tensors: list[Any] = []
    if model is None or getattr(model, "inputs", None) is None:
        return names, tensors
    for layer in model.layers:
        # By name, because tf_keras and Keras 3 have a class each.
        if type(layer).__name__ == "InputLayer":
            continue
        try:
            output = layer.output
        except (AttributeError, RuntimeError, ValueError):
            # Called more than once, or by a model whose graph Keras does not keep.
            continue
        if not isinstance(output, list | tuple):
            names.append(layer.name)
            tensors.append(output)
            continue
        for number, tensor in enumerate(output):
            names.append(f"{layer.name}/{number}")
            tensors.append(tensor)
    return names, tensors
