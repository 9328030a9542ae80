"""Inputs of KerasHub's backbones and task models, made from the arrays of a run's batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.config.schema import ModelConfig
from runner.data.base import ArraySpec
from runner.data.packing import SEGMENTS, TOKENS
from runner.errors import ConfigError
from runner.model import contract
from runner.model import inputs as model_inputs

# What all of them override: `fit` and `evaluate` preprocess the data first, and do nothing else of their own.
_OF_PIPELINE = ("fit", "evaluate")
# Prefixes of input names: none, and the two of encoder-decoder models.
_SIDES = ("", "encoder_", "decoder_")


def connected(keras: Any, name: str, backbone_inputs: Any, specs: Mapping[str, ArraySpec]) -> tuple[Any, Any]:
    """Returns Keras inputs for the arrays, and a backbone's inputs made of them.

    An array is used for the input of the same name. Other inputs are derived from the token ids: the padding mask (0
    where `segments` is 0; without segments all 1), the positions, the segment ids (all 0), and for an encoder-decoder
    model the same tokens on both sides.

    Raises:
      ValueError: an input that no array can be used for.
    """
    inputs = model_inputs.make(keras, specs)
    arrays = inputs
    if not isinstance(inputs, dict):
        arrays = {next(iter(specs)): inputs}
    if isinstance(backbone_inputs, list | tuple):
        by_name = {tensor.name: tensor for tensor in backbone_inputs}
        return inputs, [*_by_name(keras, name, by_name, arrays).values()]
    if isinstance(backbone_inputs, Mapping):
        return inputs, _by_name(keras, name, backbone_inputs, arrays)
    return inputs, _only_input(name, backbone_inputs, arrays)


def _by_name(keras: Any, name: str, backbone_inputs: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {}
    missing = []
    for key, backbone_input in backbone_inputs.items():
        tensors[key] = _derived(keras, key, arrays, backbone_input.dtype)
        if tensors[key] is None:
            missing.append(key)
    if missing:
        raise ValueError(
            f"{name} needs {', '.join(backbone_inputs)}, but the task has {', '.join(arrays)}, none of which is "
            f"{' or '.join(missing)}; provide arrays of these names with dataset=arrays and task.inputs"
        )
    return tensors


def _only_input(name: str, backbone_inputs: Any, arrays: Mapping[str, Any]) -> Any:
    rank = len(backbone_inputs.shape)
    tensor = next(iter(arrays.values()))
    if len(arrays) != 1 or len(tensor.shape) != rank:
        needed = list(backbone_inputs.shape[1:])
        shapes = ", ".join(f"{key} {list(array.shape[1:])}" for key, array in arrays.items())
        raise ValueError(
            f"{name} needs one array of {rank - 1} dims, {needed}, but the task has {shapes}; choose it with "
            "task.inputs=[image]"
        )
    return tensor


def _token_ids(arrays: Mapping[str, Any]) -> Any:
    """Returns the array of token ids (B, T): `tokens`, or the only row of integers; None: there is none."""
    if TOKENS in arrays:
        return arrays[TOKENS]
    rows = []
    for name, array in arrays.items():
        if name != SEGMENTS and len(array.shape) == 2 and np.dtype(array.dtype).kind in "iu":
            rows.append(array)
    if len(rows) == 1:
        return rows[0]
    return None


def _derived(keras: Any, key: str, arrays: Mapping[str, Any], dtype: str) -> Any:
    """Returns the tensor for one named input; None if no array can be used for it."""
    if key in arrays:
        array = arrays[key]
        if array.dtype == dtype:
            return array
        return keras.ops.cast(array, dtype)
    # The empty prefix fits every key, so it is tried last.
    side = next(side for side in reversed(_SIDES) if key.startswith(side))
    kind = key.removeprefix(side)
    token_ids = arrays.get(f"{side}token_ids")
    if token_ids is None:
        token_ids = _token_ids(arrays)
    if token_ids is None:
        return None
    if kind == "token_ids":
        return token_ids
    if kind == "padding_mask":
        if SEGMENTS in arrays:
            return keras.ops.cast(keras.ops.greater(arrays[SEGMENTS], 0), dtype)
        return keras.ops.ones_like(token_ids, dtype=dtype)
    if kind == "position_ids":
        return keras.ops.cumsum(keras.ops.ones_like(token_ids), axis=1) - 1
    if kind == "segment_ids":
        return keras.ops.zeros_like(token_ids)
    return None


def is_plain(model: Any) -> bool:
    """Returns whether a model is one of KerasHub's own tasks that Keras's step trains."""
    is_task = any(base.__name__ == "Task" and base.__module__.startswith("keras_hub.") for base in type(model).__mro__)
    is_own = type(model).__module__.startswith("keras_hub.")
    keras_model = next(base for base in type(model).__mro__ if base.__name__ == "Model")
    return is_task and is_own and not contract.overridden(model, keras_model, without=_OF_PIPELINE)


def as_model(keras: Any, task: Any, config: ModelConfig, specs: Mapping[str, ArraySpec]) -> Any:
    """Returns a task's network as a functional model of the run's arrays.

    It is not compiled, as KerasHub compiles its tasks by default: a run has its own loss and optimizer.

    Raises:
      ConfigError: the task has a preprocessor.
    """
    name = type(task).__name__
    if task.preprocessor is not None:
        raise ConfigError(
            f"model._target_={config.target}: {name} has a preprocessor, which Keras's fit applies and a run does "
            "not; set its argument preprocessor=None, and prepare the arrays in the dataset"
        )
    model_inputs, task_inputs = connected(keras, name, task.input, specs)
    network = keras.Model(task.input, task.output, name=task.name)
    return keras.Model(model_inputs, network(task_inputs), name="keras_hub")
