"""Average pooling by windows over the spatial dims, for whose gradients DTensor has rules.

Shapes: B examples, C channels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from runner.data.base import Array


def windows(x: tf.Tensor, size: Sequence[int], strides: Sequence[int]) -> Iterator[tf.Tensor]:
    """Yields the entries (B, ..., C) at each place in a window, row by row.

    Args:
      x: (B, spatial dims, C), already padded.
      size: the size of the window, one per spatial dim.
      strides: the strides of the window, one per spatial dim.
    """
    # Length of the slice along each dim, from the first window's entry to the last one's.
    lengths = []
    for length, window, stride in zip(x.shape[1:-1], size, strides, strict=True):
        count = (int(length) - window) // stride + 1
        lengths.append((count - 1) * stride + 1)
    for place in itertools.product(*map(range, size)):
        slices = []
        for start, length, stride in zip(place, lengths, strides, strict=True):
            slices.append(slice(start, start + length, stride))
        yield x[(slice(None), *slices, slice(None))]


def pads_of(
    lengths: Sequence[int], size: Sequence[int], strides: Sequence[int], padding: str | bytes
) -> list[tuple[int, int]]:
    """Returns the padding before and after each spatial dim, for `VALID` or `SAME`."""
    name = padding.decode() if isinstance(padding, bytes) else padding
    if name.upper() == "VALID":
        return [(0, 0)] * len(lengths)
    pads = []
    for length, window, stride in zip(lengths, size, strides, strict=True):
        windows_count = -(-int(length) // stride)
        covered = (windows_count - 1) * stride + window
        total = max(covered - int(length), 0)
        # An odd total pads more at the end, as in TensorFlow.
        pads.append((total // 2, total - total // 2))
    return pads


def spatial(values: Sequence[int], data_format: str, rank: int) -> list[int]:
    """Returns the entries for spatial dims in a list with one entry per dim.

    Args:
      values: of length `rank`.
      data_format: such as `NHWC` or `NCHW`.
      rank: the rank of the tensor.
    """
    sizes = list(map(int, values))
    if data_format[-1] == "C":
        return sizes[1 : rank - 1]
    return sizes[2:]


def channels_last(compute: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, data_format: str) -> tf.Tensor:
    """Applies a function of channels-last tensors to one of any format."""
    if data_format[-1] == "C":
        return compute(x)
    rank = len(x.shape)
    y = compute(tf.transpose(x, [0, *range(2, rank), 1]))
    return tf.transpose(y, [0, rank - 1, *range(1, rank - 1)])


def _entries_inside(length: int, window: int, stride: int, pad: tuple[int, int]) -> Array:
    """Returns for each window along a dim how many of its entries are not padding."""
    starts = np.arange(0, length + sum(pad) - window + 1, stride) - pad[0]
    return np.minimum(starts + window, length) - np.maximum(starts, 0)


def avg_pool(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str = "NHWC",
    name: str | None = None,
) -> tf.Tensor:
    """Replaces the raw operation AvgPool."""
    rank = len(input.shape)
    size = spatial(ksize, data_format, rank)
    steps = spatial(strides, data_format, rank)

    def pool(x: tf.Tensor) -> tf.Tensor:
        lengths = list(map(int, x.shape[1:-1]))
        pads = pads_of(lengths, size, steps, padding)
        parts = list(windows(tf.pad(x, [(0, 0), *pads, (0, 0)]), size, steps))
        counts = map(_entries_inside, lengths, size, steps, pads)
        count = functools.reduce(np.multiply.outer, counts)[None, ..., None]
        total = tf.add_n(parts)
        return total / tf.constant(count, total.dtype)

    with tf.name_scope(name or "AvgPool"):
        return channels_last(pool, input, data_format)
