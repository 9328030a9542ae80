"""Operations of TensorFlow and tf_keras that DTensor has no rule for, computed by others while a step is traced.

Layers, whosever they are, stay as they are: what they call is answered otherwise. Each function here has the
signature and the result of the one that it stands for, in all its arguments. Without a rule are: fused batch
normalization; the gradients of average pooling, of depthwise convolution, of 3-D pooling, of silu and softsign;
dilation; reversals, rolls and mirrored padding; loops over time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from runner.engine.dtensor import private
from runner.engine.dtensor.operations import activation, convolution, drawn, loops, normalization, order, windows
from runner.engine.dtensor.private import ARRAYS, BACKEND, GRU, KERNELS, LSTM, MANIPULATIONS, NN, RAW_ARRAYS, STATELESS

_CALLS_BACK = ("rnn", "_key")  # the first: a user's cell, which AutoGraph is for


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Answers the operations that DTensor has no rule for by others, while the context lasts."""
    before = [(module, name, getattr(module, name)) for module, name, _ in REPLACED]
    try:
        for module, name, function in REPLACED:
            as_written = tf.autograph.experimental.do_not_convert(function)
            setattr(module, name, function if name in _CALLS_BACK else as_written)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


REPLACED: tuple[tuple[ModuleType | type, str, Callable[..., Any]], ...] = (
    (KERNELS, "avg_pool", windows.avg_pool),
    (KERNELS, "avg_pool3d", windows.avg_pool3d),
    (KERNELS, "max_pool3d", windows.max_pool3d),
    (KERNELS, "depthwise_conv2d_native", convolution.depthwise_conv2d_native),
    (KERNELS, "fused_batch_norm_v3", normalization.fused_batch_norm_v3),
    (NN, "convolution_internal", convolution.convolution_internal),
    (NN, "with_space_to_batch", convolution.with_space_to_batch),
    (BACKEND, "conv2d_transpose", convolution.conv2d_transpose),
    (private.Convolution, "_jit_compiled_convolution_op", convolution.jit_compiled_convolution_op),
    (BACKEND, "rnn", loops.rnn),
    (BACKEND.ContextValueCache, "_key", loops.mask_context),
    (BACKEND, "reverse", order.reverse),
    (LSTM, "lstm_with_backend_selection", LSTM.standard_lstm),
    (GRU, "gru_with_backend_selection", GRU.standard_gru),
    (ARRAYS, "reverse", order.reverse),
    (ARRAYS, "reverse_v2", order.reverse),
    *((module, "reverse", order.reverse) for module in private.PUBLIC),
    *((module.nn, name, activation.silu) for module in private.PUBLIC for name in ("silu", "swish")),
    *((home, "softsign", activation.softsign) for module in private.PUBLIC for home in (module.math, module.nn)),
    (MANIPULATIONS, "roll", order.roll),
    (RAW_ARRAYS, "mirror_pad", order.mirror_pad),
    (STATELESS, "stateless_random_uniform", drawn.uniform),
    *((module.random, "stateless_uniform", drawn.uniform) for module in private.PUBLIC),
    *((module.random, "stateless_normal", drawn.normal) for module in private.PUBLIC),
    *((module.random, "stateless_truncated_normal", drawn.truncated_normal) for module in private.PUBLIC),
)
