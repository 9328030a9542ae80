"""Reversals, rolls and mirrored padding, as gathers of known places."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from runner.data.base import Array


def _reordered(x: tf.Tensor, order: Callable[[int], Array], axis: int) -> tf.Tensor:
    """Returns a tensor whose places along a dim come in the order that a function of its length gives."""
    dim = int(axis) % len(x.shape)
    return tf.gather(x, tf.constant(order(int(x.shape[dim])), tf.int32), axis=dim)


def _listed(value: Any) -> list[int]:
    """Returns the numbers of a list or constant tensor."""
    found = tf.get_static_value(value) if tf.is_tensor(value) else value
    return [int(each) for each in np.reshape(found, -1)]


def reverse(tensor: tf.Tensor, axis: Any, name: str | None = None) -> tf.Tensor:
    """Stands for `tf.reverse`."""
    with tf.name_scope(name or "reverse"):
        return functools.reduce(lambda x, dim: _reordered(x, lambda n: np.arange(n)[::-1], dim), _listed(axis), tensor)


def backend_reverse(x: tf.Tensor, axes: int | Sequence[int]) -> tf.Tensor:
    """Stands for tf_keras's function `reverse`."""
    return reverse(x, axes)


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
            x = _reordered(x, functools.partial(_rolled, places=places), dim)
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
        known = tf.get_static_value(paddings) if tf.is_tensor(paddings) else paddings
        for dim, pads in enumerate(np.asarray(known).tolist()):
            if any(pads):
                x = _reordered(x, functools.partial(_mirrored, pads=pads, mode=mode.lower()), dim)
        return x


def _rolled(length: int, places: int) -> Array:
    return np.roll(np.arange(length), places)


def _mirrored(length: int, pads: Sequence[int], mode: str) -> Array:
    before, after = pads
    order = np.arange(length)
    if mode == "reflect":
        return np.pad(order, (before, after), "reflect")
    return np.pad(order, (before, after), "symmetric")
