"""Convolutions whose form or gradient DTensor has no rule for, computed by others. Shapes: B examples, C channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras

from runner.engine.dtensor.operations.windows import channels_last, padded, pads_of, spatial, windows
from runner.engine.dtensor.private import BACKEND, NN

_rates: list[Sequence[int]] = []  # of the dilated depthwise convolution that is being traced
_stock_convolution = NN.convolution_internal
_stock_space_to_batch = NN.with_space_to_batch
_stock_conv2d_transpose = BACKEND.conv2d_transpose


def dilated(kernel: tf.Tensor, rates: Sequence[int]) -> tf.Tensor:
    """Returns a kernel (spatial dims, ..., ...) with zeros between its places, which dilation means."""
    kernel = tf.convert_to_tensor(kernel)
    rank = len(kernel.shape)
    for dim, rate in enumerate(rates):
        if rate == 1:
            continue
        shape = kernel.shape.as_list()
        spread = tf.pad(
            tf.expand_dims(kernel, dim + 1), [[0, rate - 1 if d == dim + 1 else 0] for d in range(rank + 1)]
        )
        merged = tf.reshape(spread, [size * rate if d == dim else size for d, size in enumerate(shape)])
        kernel = tf.slice(merged, [0] * rank, [(s - 1) * rate + 1 if d == dim else s for d, s in enumerate(shape)])
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
    """Stands for what `tf.nn.convolution` calls: a dilated kernel in place of dilation, group by group in 3-D.

    Without XLA, TensorFlow computes groups on CPUs in 1-D and 2-D alone.
    """
    dims = len(filters.shape) - 2
    channels = -1 if (data_format or "").endswith("C") or not data_format else 1
    groups = input.shape[channels] // filters.shape[-2] if dims == 3 else 1
    if groups > 1:
        pairs = zip(tf.split(input, groups, channels), tf.split(filters, groups, -1), strict=True)
        parts = [convolution_internal(x, kernel, strides, padding, data_format, dilations) for x, kernel in pairs]
        return tf.concat(parts, channels, name=name or "groups")
    if dilations is not None:
        listed = [dilations] if isinstance(dilations, int) else [int(rate) for rate in dilations]
        if len(listed) == dims + 2:
            listed = spatial(listed, data_format or "NHWC", dims + 2)
        rates = listed * dims if len(listed) == 1 else listed
        if any(rate != 1 for rate in rates):
            filters = dilated(filters, rates)
            dilations = None
    return _stock_convolution(
        input, filters, strides, padding, data_format, dilations, name, call_from_convolution, num_spatial_dims
    )


def jit_compiled_convolution_op(layer: tf_keras.layers.Layer, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Stands for the method by which layers convolve in groups: its program was made before this step is traced."""
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
    """Stands for what a depthwise convolution calls for its dilation, which `depthwise_conv2d_native` here does."""
    rates = [int(rate) for rate in dilation_rate]
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
    """Stands for the raw operation DepthwiseConv2dNative: the sum of its shifted products."""
    kernel = tf.convert_to_tensor(filter)
    height, width, channels, depth = kernel.shape
    rates = _rates[-1] if _rates else spatial(dilations or (1, 1, 1, 1), data_format, 4)
    steps = spatial(strides, data_format, 4)
    taps = tf.unstack(tf.reshape(kernel, (height * width, channels, depth)))

    def convolve(x: tf.Tensor) -> tf.Tensor:
        if explicit_paddings:
            listed = (
                spatial(explicit_paddings[::2], data_format, 4),
                spatial(explicit_paddings[1::2], data_format, 4),
            )
            pads = list(zip(*listed, strict=True))
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
    """Stands for tf_keras's function of that name: a dilated kernel in place of dilation."""
    return _stock_conv2d_transpose(
        x, dilated(kernel, dilation_rate), output_shape, tuple(strides), padding, data_format, (1, 1)
    )
