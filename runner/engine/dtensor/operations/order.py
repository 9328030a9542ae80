"""Reversals, rolls and mirrored padding, as gathers of constant indices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from runner.data.base import Array


def _reordered(x: tf.Tensor, axis: int, order: Callable[[Array], Array]) -> tf.Tensor:
    """Returns a tensor whose entries along a dim are in another order.

    Args:
      x: any tensor of known size along the dim.
      axis: the dim, negative from the end.
      order: indices in order -> indices in the new order.
    """
    dim = axis % len(x.shape)
    # NumPy orders the indices while the program is traced, which leaves one gather to the program.
    indices = order(np.arange(int(x.shape[dim])))
    return tf.gather(x, tf.constant(indices, tf.int32), axis=dim)


def _listed(value: Any) -> list[int]:
    """Returns the integers of a list or constant tensor."""
    return list(map(int, np.reshape(tf.get_static_value(value), -1)))


def reverse(tensor: tf.Tensor, axis: Any, name: str | None = None) -> tf.Tensor:
    """Replaces `tf.reverse`, and tf_keras's function of that name."""
    with tf.name_scope(name or "reverse"):
        for dim in _listed(axis):
            tensor = _reordered(tensor, dim, np.flip)
        return tensor


def roll(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    shift: Any,
    axis: Any,
    name: str | None = None,
) -> tf.Tensor:
    """Replaces `tf.roll` for a constant shift."""
    with tf.name_scope(name or "roll"):
        x = tf.convert_to_tensor(input)
        for places, dim in zip(_listed(shift), _listed(axis), strict=True):
            x = _reordered(x, dim, functools.partial(np.roll, shift=places))
        return x


def mirror_pad(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    paddings: Any,
    mode: str,
    name: str | None = None,
) -> tf.Tensor:
    """Replaces the raw operation MirrorPad, modes REFLECT and SYMMETRIC."""
    with tf.name_scope(name or "MirrorPad"):
        x = tf.convert_to_tensor(input)
        for dim, pads in enumerate(np.reshape(_listed(paddings), (-1, 2))):
            # Most dims, such as those of the batch and the channels, have no padding and need no gather.
            if any(pads):
                x = _reordered(x, dim, functools.partial(np.pad, pad_width=tuple(pads), mode=mode.lower()))
        return x
