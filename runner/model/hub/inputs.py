"""What a backbone of KerasHub takes, made of the arrays that a run's model is called with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.data.base import ArraySpec
from runner.model import inputs as own

TOKENS = "tokens"
SEGMENTS = "segments"
_SIDES = ("", "encoder_", "decoder_")


def taken(keras: Any, name: str, wanted: Any, given: Mapping[str, ArraySpec]) -> tuple[Any, Any]:
    """Returns Keras's inputs, and what the backbone is called with, made of them.

    An array goes where its name says. Of token ids alone the rest is made: the mask of padding (where `segments` is 0,
    or nowhere), the tokens' places, their types (all 0), and the same tokens for an encoder and a decoder.

    Args:
      keras: the module.
      name: the backbone's, for messages.
      wanted: its `input`: a symbolic tensor, tensors by name, or a list of named ones.
      given: specs by name, of what the model is called with.

    Raises:
      ValueError: an input that none of the arrays can be.
    """
    inputs = own.make(keras, given)
    tensors = inputs if isinstance(inputs, dict) else {next(iter(given)): inputs}
    if isinstance(wanted, list | tuple):
        return inputs, [*_by_name(keras, name, {each.name: each for each in wanted}, tensors).values()]
    if isinstance(wanted, Mapping):
        return inputs, _by_name(keras, name, wanted, tensors)
    return inputs, _only(name, tensors, wanted)


def _by_name(keras: Any, name: str, wanted: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _made(keras, key, tensors, each.dtype) for key, each in wanted.items()}
    missing = [key for key, tensor in found.items() if tensor is None]
    if missing:
        raise ValueError(
            f"{name} takes {', '.join(wanted)}, and the task gives {', '.join(tensors)}, of which none is "
            f"{' or '.join(missing)}; give arrays of these names, by dataset=arrays and task.inputs"
        )
    return found


def _only(name: str, tensors: Mapping[str, Any], wanted: Any) -> Any:
    rank = len(wanted.shape)
    fitting = [tensor for tensor in tensors.values() if len(tensor.shape) == rank]
    if len(tensors) != 1 or not fitting:
        shapes = ", ".join(f"{key} {list(tensor.shape[1:])}" for key, tensor in tensors.items())
        raise ValueError(
            f"{name} takes one array of {rank - 1} dims, {list(wanted.shape[1:])}, and the task gives {shapes}; name "
            "it as task.inputs=[image]"
        )
    return fitting[0]


def token_input(given: Mapping[str, Any]) -> str | None:
    """Returns the name of the array of token ids: `tokens`, or the only one of whole numbers in a row."""
    if TOKENS in given:
        return TOKENS
    rows = [
        key
        for key, each in given.items()
        if key != SEGMENTS and len(each.shape) == (1 if isinstance(each, ArraySpec) else 2) and _is_whole(each.dtype)
    ]
    return rows[0] if len(rows) == 1 else None


def _is_whole(dtype: str) -> bool:
    return np.dtype(dtype).kind in "iu"


def _made(keras: Any, key: str, tensors: Mapping[str, Any], dtype: str) -> Any:
    """Returns what goes into one input; None where no array can."""
    if key in tensors:
        given = tensors[key]
        return given if given.dtype == dtype else keras.ops.cast(given, dtype)
    kind = next(key.removeprefix(side) for side in reversed(_SIDES) if key.startswith(side))
    side = key.removesuffix(kind)
    ids = tensors.get(f"{side}token_ids")
    if ids is None:
        name = token_input(tensors)
        ids = None if name is None else tensors[name]
    if ids is None:
        return None
    if kind == "token_ids":
        return ids
    if kind == "padding_mask":
        if SEGMENTS in tensors:
            return keras.ops.cast(keras.ops.greater(tensors[SEGMENTS], 0), dtype)
        return keras.ops.ones_like(ids, dtype=dtype)
    if kind == "position_ids":
        return keras.ops.cumsum(keras.ops.ones_like(ids), axis=1) - 1
    return keras.ops.zeros_like(ids) if kind == "segment_ids" else None
