"""Reversals, rolls and mirrored padding, as gathers of known places."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from runner.data.base import Array


def _reordered(x: tf.Tensor, axis: int, order: Callable[[Array], Array]) -> tf.Tensor:
    """Returns a tensor whose places along a dim come in the order that a function puts them in."""
    dim = axis % len(x.shape)
    return tf.gather(x, tf.constant(order(np.arange(int(x.shape[dim]))), tf.int32), axis=dim)


def _listed(value: Any) -> list[int]:
    """Returns the numbers of a list or constant tensor."""
    return [int(each) for each in np.reshape(tf.get_static_value(value), -1)]


def reverse(tensor: tf.Tensor, axis: Any, name: str | None = None) -> tf.Tensor:
    """Stands for `tf.reverse`, and for tf_keras's function of that name."""
    with tf.name_scope(name or "reverse"):
        return functools.reduce(lambda x, dim: _reordered(x, dim, np.flip), _listed(axis), tensor)


def roll(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    shift: Any,
    axis: Any,
    name: str | None = None,
) -> tf.Tensor:
    """Stands for `tf.roll` by a constant shift."""
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
    """Stands for the raw operation MirrorPad, modes REFLECT and SYMMETRIC."""
    with tf.name_scope(name or "MirrorPad"):
        x = tf.convert_to_tensor(input)
        for dim, pads in enumerate(np.reshape(_listed(paddings), (-1, 2))):
            if any(pads):
                x = _reordered(x, dim, functools.partial(np.pad, pad_width=tuple(pads), mode=mode.lower()))
        return x
