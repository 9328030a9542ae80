"""Replaces operations that DTensor has no rule for while a step is traced.

Layers stay as they are; the functions of TensorFlow and tf_keras that they call are replaced. Each function here has
the signature and the result of the one that it replaces, for all arguments. DTensor has no rule for: fused batch
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

# Replacements that are not hidden from AutoGraph: `rnn` calls a user's cell, whose code may branch on tensors, and
# that calls `_key` in turn.
_CALLS_BACK = ("rnn", "_key")


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Replaces the operations that DTensor has no rule for, within the context."""
    before = [(module, name, getattr(module, name)) for module, name, _ in REPLACED]
    try:
        for module, name, function in REPLACED:
            if name not in _CALLS_BACK:
                function = tf.autograph.experimental.do_not_convert(function)
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


# (module or class, name of its function, replacement)
_Replacement = tuple[ModuleType | type, str, Callable[..., Any]]


def _public_replacements() -> Iterator[_Replacement]:
    """Yields the replacements in TensorFlow's public modules.

    A user's layers may call them.
    """
    for module in private.PUBLIC:
        yield module, "reverse", order.reverse
        yield module.nn, "silu", activation.silu
        yield module.nn, "swish", activation.silu
        yield module.nn, "softsign", activation.softsign
        yield module.math, "softsign", activation.softsign
        yield module.random, "stateless_uniform", drawn.uniform
        yield module.random, "stateless_normal", drawn.normal
        yield module.random, "stateless_truncated_normal", drawn.truncated_normal


REPLACED: tuple[_Replacement, ...] = (
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
    (MANIPULATIONS, "roll", order.roll),
    (RAW_ARRAYS, "mirror_pad", order.mirror_pad),
    (STATELESS, "stateless_random_uniform", drawn.uniform),
    *_public_replacements(),
)
