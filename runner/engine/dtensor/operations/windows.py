"""Windows over the spatial dims of a tensor, and pooling by them, whose gradients DTensor knows.

Shapes: B examples, C channels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from runner.data.base import Array


def windows(x: tf.Tensor, size: Sequence[int], strides: Sequence[int], rates: Sequence[int]) -> Iterator[tf.Tensor]:
    """Yields the (B, ..., C) that each place of a window meets, row by row.

    Args:
      x: (B, spatial dims, C), already padded.
      size: of the window, a spatial dim each.
      strides: likewise.
      rates: steps between the places of a window.
    """
    ends = []
    for length, window, stride, rate in zip(x.shape[1:-1], size, strides, rates, strict=True):
        count = (int(length) - (window - 1) * rate - 1) // stride + 1
        ends.append((count - 1) * stride + 1)
    for place in itertools.product(*(range(window) for window in size)):
        starts = [at * rate for at, rate in zip(place, rates, strict=True)]
        cuts = [slice(start, start + end, step) for start, end, step in zip(starts, ends, strides, strict=True)]
        yield x[(slice(None), *cuts, slice(None))]


def pads_of(
    lengths: Sequence[int], size: Sequence[int], strides: Sequence[int], padding: str | bytes, rates: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns what is padded before and after each spatial dim."""
    name = padding.decode() if isinstance(padding, bytes) else padding
    if name.upper() == "VALID":
        return [(0, 0)] * len(lengths)
    found = []
    for length, window, stride, rate in zip(lengths, size, strides, rates, strict=True):
        total = max((-(-int(length) // stride) - 1) * stride + (window - 1) * rate + 1 - int(length), 0)
        found.append((total // 2, total - total // 2))
    return found


def padded(x: tf.Tensor, pads: Sequence[tuple[int, int]], fill: float) -> tf.Tensor:
    """Returns a tensor with something before and after each of its spatial dims."""
    return tf.pad(x, [(0, 0), *pads, (0, 0)], constant_values=tf.cast(fill, x.dtype))


def spatial(values: Sequence[int], data_format: str, rank: int) -> list[int]:
    """Returns the entries of a list (B, ..., C) that are of spatial dims."""
    listed = [int(value) for value in values]
    return listed[2:] if data_format[-1] != "C" else listed[1 : rank - 1]


def channels_last(compute: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, data_format: str) -> tf.Tensor:
    """Returns what is computed of a tensor with its channels last, in the format that it has."""
    if data_format[-1] == "C":
        return compute(x)
    rank = len(x.shape)
    y = compute(tf.transpose(x, [0, *range(2, rank), 1]))
    return tf.transpose(y, [0, rank - 1, *range(1, rank - 1)])


def _inside(length: int, window: int, stride: int, pad: tuple[int, int]) -> Array:
    """Returns how many places of each window along a dim are no padding."""
    starts = np.arange(0, length + sum(pad) - window + 1, stride) - pad[0]
    return np.minimum(starts + window, length) - np.maximum(starts, 0)


def _pooling(kind: str) -> Callable[..., tf.Tensor]:
    """Returns what stands for a raw pooling operation, `AvgPool`, `AvgPool3D` or `MaxPool3D`."""

    def pooling(
        input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: str,
        data_format: str = "NHWC",
        name: str | None = None,
    ) -> tf.Tensor:
        size, steps = (spatial(each, data_format, len(input.shape)) for each in (ksize, strides))
        ones = [1] * len(size)

        def pool(x: tf.Tensor) -> tf.Tensor:
            lengths = [int(length) for length in x.shape[1:-1]]
            pads = pads_of(lengths, size, steps, padding, ones)
            fill = x.dtype.min if kind == "MaxPool3D" else 0.0
            parts = list(windows(padded(x, pads, fill), size, steps, ones))
            if kind == "MaxPool3D":
                return functools.reduce(tf.maximum, parts)  # of equals the first has the gradient, as in TensorFlow's
            counts = [_inside(*dim) for dim in zip(lengths, size, steps, pads, strict=True)]
            count = functools.reduce(np.multiply.outer, counts)[None, ..., None]
            total = tf.add_n(parts)
            return total / tf.constant(count, total.dtype)

        with tf.name_scope(name or kind):
            return channels_last(pool, input, data_format)

    return pooling


avg_pool = _pooling("AvgPool")
avg_pool3d = _pooling("AvgPool3D")
max_pool3d = _pooling("MaxPool3D")
