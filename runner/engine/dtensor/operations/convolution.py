"""Convolutions whose form or gradient DTensor has no rule for.

Shapes: B examples, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras

from runner.engine.dtensor.operations.windows import channels_last, padded, pads_of, spatial, windows
from runner.engine.dtensor.private import BACKEND, NN

# Dilation rates of the depthwise convolution that is being traced, if it has such.
_rates: list[Sequence[int]] = []
_stock_convolution = NN.convolution_internal
_stock_space_to_batch = NN.with_space_to_batch
_stock_conv2d_transpose = BACKEND.conv2d_transpose


def dilated(kernel: tf.Tensor, rates: Sequence[int]) -> tf.Tensor:
    """Returns a dilated kernel (spatial dims, ..., ...).

    Zeros between its entries take the place of the dilation.
    """
    kernel = tf.convert_to_tensor(kernel)
    rank = len(kernel.shape)
    for dim, rate in enumerate(rates):
        if rate == 1:
            continue
        shape = kernel.shape.as_list()
        # (..., size, ...) becomes (..., size, rate, ...) with zeros after each entry, then (..., size * rate, ...), of
        # which the zeros after the last entry are cut off.
        paddings = [[0, 0] for _ in range(rank + 1)]
        paddings[dim + 1] = [0, rate - 1]
        spread = tf.pad(tf.expand_dims(kernel, dim + 1), paddings)
        merged_shape = list(shape)
        merged_shape[dim] = shape[dim] * rate
        dilated_shape = list(shape)
        dilated_shape[dim] = (shape[dim] - 1) * rate + 1
        kernel = tf.slice(tf.reshape(spread, merged_shape), [0] * rank, dilated_shape)
    return kernel


def convolution_internal(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    filters: tf.Tensor,
    strides: Sequence[int] | int | None = None,
    padding: str = "VALID",
    data_format: str | None = None,
    dilations: Sequence[int] | int | None = None,
    name: str | None = None,
    call_from_convolution: bool = True,
    num_spatial_dims: int | None = None,
) -> tf.Tensor:
    """Replaces the function that `tf.nn.convolution` calls.

    A dilated kernel for dilation, group by group in 3-D.

    Without XLA, TensorFlow computes groups on CPUs in 1-D and 2-D only.
    """
    dims = len(filters.shape) - 2
    channels = 1
    if not data_format or data_format.endswith("C"):
        channels = -1
    groups = 1
    if dims == 3:
        groups = input.shape[channels] // filters.shape[-2]
    if groups > 1:
        group_inputs = tf.split(input, groups, channels)
        group_kernels = tf.split(filters, groups, -1)
        parts = []
        for x, kernel in zip(group_inputs, group_kernels, strict=True):
            parts.append(convolution_internal(x, kernel, strides, padding, data_format, dilations))
        return tf.concat(parts, channels, name=name or "groups")
    if dilations is not None:
        rates = _spatial_rates(dilations, dims, data_format)
        if any(rate != 1 for rate in rates):
            filters = dilated(filters, rates)
            dilations = None
    return _stock_convolution(
        input, filters, strides, padding, data_format, dilations, name, call_from_convolution, num_spatial_dims
    )


def _spatial_rates(dilations: Sequence[int] | int, dims: int, data_format: str | None) -> list[int]:
    """Returns the rate of each spatial dim.

    TensorFlow takes one for all, one per spatial dim, or one per dim.
    """
    if isinstance(dilations, int):
        return [dilations] * dims
    rates = list(map(int, dilations))
    if len(rates) == dims + 2:
        rates = spatial(rates, data_format or "NHWC", dims + 2)
    if len(rates) == 1:
        return rates * dims
    return rates


def jit_compiled_convolution_op(layer: tf_keras.layers.Layer, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Replaces the method by which layers convolve in groups.

    Its program was made before this step is traced.
    """
    return layer.convolution_op(inputs, kernel)


def with_space_to_batch(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    dilation_rate: Sequence[int],
    padding: str,
    op: Callable[..., tf.Tensor],
    filter_shape: tf.Tensor | None = None,
    spatial_dims: Sequence[int] | None = None,
    data_format: str | None = None,
) -> tf.Tensor:
    """Replaces the dilation of a depthwise convolution.

    `depthwise_conv2d_native` of this module computes it.
    """
    rates = list(map(int, dilation_rate))
    if all(rate == 1 for rate in rates) or spatial_dims is not None or len(rates) != 2:
        return _stock_space_to_batch(input, dilation_rate, padding, op, filter_shape, spatial_dims, data_format)
    _rates.append(rates)
    try:
        return op(input, len(rates), padding)
    finally:
        _rates.pop()


def depthwise_conv2d_native(
    input: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    filter: tf.Tensor,  # noqa: A002 (TensorFlow's name)
    strides: Sequence[int],
    padding: str,
    explicit_paddings: Sequence[int] = (),
    data_format: str = "NHWC",
    dilations: Sequence[int] = (1, 1, 1, 1),
    name: str | None = None,
) -> tf.Tensor:
    """Replaces DepthwiseConv2dNative by the sum of its shifted products."""
    kernel = tf.convert_to_tensor(filter)
    height, width, channels, depth = kernel.shape
    rates = _rates[-1] if _rates else spatial(dilations or (1, 1, 1, 1), data_format, 4)
    steps = spatial(strides, data_format, 4)
    taps = tf.unstack(tf.reshape(kernel, (height * width, channels, depth)))

    def convolve(x: tf.Tensor) -> tf.Tensor:
        if explicit_paddings:
            # Two entries per dim: before and after.
            before = spatial(explicit_paddings[::2], data_format, 4)
            after = spatial(explicit_paddings[1::2], data_format, 4)
            pads = list(zip(before, after, strict=True))
        else:
            pads = pads_of(x.shape[1:-1], (height, width), steps, padding, rates)
        parts = windows(padded(x, pads, 0.0), (height, width), steps, rates)
        y = tf.add_n([tf.expand_dims(part, -1) * tap for part, tap in zip(parts, taps, strict=True)])
        return tf.reshape(y, [*y.shape[:3], channels * depth])

    with tf.name_scope(name or "depthwise"):
        return channels_last(convolve, input, data_format)


def conv2d_transpose(
    x: tf.Tensor,
    kernel: tf.Tensor,
    output_shape: tf.Tensor,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sequence[int] = (1, 1),
) -> tf.Tensor:
    """Replaces tf_keras's function of that name: a dilated kernel for dilation."""
    return _stock_conv2d_transpose(
        x, dilated(kernel, dilation_rate), output_shape, tuple(strides), padding, data_format, (1, 1)
    )
