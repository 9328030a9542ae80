"""The array namespace of update rules, schedules, losses and metrics.

A formula is written once and computed by NumPy, TensorFlow or JAX. Names are NumPy's where NumPy has the function.
Each function has the form that its engine computes well, from operations that DTensor can place on a mesh: no gather
along a dim that may be sharded, no index or new axis in brackets (`x[:, 0]`, `x[:, None]`). Imports none of the
libraries: learning rates are evaluated in Python numbers while a config is checked, before any library may be loaded.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any

# A number, or an array of NumPy, TensorFlow or JAX. No type spans the three.
Tensor = Any
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Elementary:
    """Functions of numbers and of arrays, elementwise: what a schedule needs."""

    square: Function
    sqrt: Function
    rsqrt: Function
    power: Function
    minimum: Function
    maximum: Function
    floor: Function  # as a float
    cos: Function
    to_float: Function  # of a bool or a Python number; a float32 array if the library has arrays


_HALF_PRECISION = ("bfloat16", "float16")

# Of Python numbers.
NUMBERS = Elementary(
    square=lambda x: x * x,
    sqrt=math.sqrt,
    rsqrt=lambda x: 1.0 / math.sqrt(x),
    power=math.pow,
    minimum=min,
    maximum=max,
    floor=math.floor,
    cos=math.cos,
    to_float=float,
)


@dataclass(frozen=True)
class Arrays(Elementary):
    """Functions of one library's arrays, as NumPy has them where no comment says otherwise.

    `axis` may be a number or a tuple, and is None for all dims.
    """

    keras_name: str  # of the Keras whose functions take the same arrays
    cast: Function  # (x, dtype) with the dtype's name, such as float32
    sum: Function  # (x, axis=None, keepdims=False), as the next three
    mean: Function
    max: Function
    min: Function
    abs: Function
    sign: Function
    exp: Function
    log: Function
    log1p: Function
    sigmoid: Function
    softplus: Function
    tanh: Function
    zeros_like: Function
    ones_like: Function
    stop_gradient: Function  # the same values, constant for gradients
    equal: Function
    not_equal: Function
    greater: Function
    greater_equal: Function
    less: Function
    less_equal: Function
    where: Function  # all of one rank, or the choices are numbers
    clip: Function
    argmax: Function  # (x, axis) -> int32, the first of equals
    # (x, count) -> float32 with a last dim of `count`; a row of zeros for numbers outside 0 to count - 1.
    one_hot: Function
    softmax: Function  # over the last dim, as the next two
    log_softmax: Function
    logsumexp: Function
    matmul: Function
    transpose: Function
    reshape: Function
    expand_dims: Function
    squeeze: Function
    stack: Function
    concatenate: Function
    take: Function  # (table, indices), (V,) and int32 (...) -> (...), of a table that is not sharded
    sparse_cross_entropy: Function  # (labels, logits), int32 (...) and float32 (..., C) -> nats (...)
    cross_entropy: Function  # (probabilities, logits), both float32 (..., C) -> nats (...)
    sigmoid_cross_entropy: Function  # (labels, logits), of one shape, labels from 0 to 1 -> nats, elementwise
    # (x) -> the same values, of which each device of a mesh has every row: what the rows of a batch are compared with.
    # An engine whose compiler does not do so by itself replaces it.
    all_rows: Function
    # (hidden, head, label, weight), (B, T, D), (D, V), int32 and float32 (B, T) -> `token_losses` of the logits
    # `hidden @ head`, never all of which are in memory. The gradients of the nats must be proportional to the weight.
    # None: the engine has no such function.
    head_losses: Function | None = None

    @property
    def keras(self) -> ModuleType:
        """The engine's Keras: a loss may call `ops.keras.losses.kl_divergence(labels, outputs)`."""
        return importlib.import_module(self.keras_name)

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Returns an array's shape."""
        return tuple(map(int, x.shape))


FIELDS = tuple(field.name for field in fields(Arrays))


@cache
def of(module: ModuleType) -> Arrays:
    """Returns the functions of `numpy`, `tensorflow` or `jax.numpy`, which is imported."""
    makers = {"numpy": _of_numpy, "tensorflow": _of_tensorflow, "jax": _of_jax}
    # The module that is imported as tensorflow may be an inner one, as `tensorflow._api.v2.v2`.
    name = module.__name__.partition(".")[0]
    if name not in makers:
        raise ValueError(f"unknown array module {name}; known modules: {', '.join(makers)}")
    return makers[name](module)


def elementary(module: ModuleType) -> Elementary:
    """Returns the elementary functions of `math`, for Python numbers, or of a module that `of` takes."""
    if module is math:
        return NUMBERS
    return of(module)


def _under_same_names(module: ModuleType) -> dict[str, Function]:
    return {name: getattr(module, name) for name in FIELDS if hasattr(module, name)}


def _of_tensorflow(tf: ModuleType) -> Arrays:
    def reduced(function: Function) -> Function:
        return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)

    def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        # DTensor does not broadcast a choice: numbers are filled up to the shape of the others.
        like = tf.cast(condition, tf.float32)
        if tf.is_tensor(y):
            like = y
        if tf.is_tensor(x):
            like = x
        if not tf.is_tensor(x):
            x = tf.ones_like(like) * x
        if not tf.is_tensor(y):
            y = tf.ones_like(like) * y
        return tf.where(condition, x, y)

    own: dict[str, Function] = {
        "rsqrt": tf.math.rsqrt,
        "power": tf.pow,
        "to_float": lambda x: tf.cast(x, tf.float32),
        "sum": reduced(tf.reduce_sum),
        "mean": reduced(tf.reduce_mean),
        "max": reduced(tf.reduce_max),
        "min": reduced(tf.reduce_min),
        "log": tf.math.log,
        "log1p": tf.math.log1p,
        "sigmoid": tf.math.sigmoid,
        "softplus": tf.math.softplus,
        "where": where,
        "clip": lambda x, low, high: tf.minimum(tf.maximum(x, low), high),
        "argmax": lambda x, axis=-1: tf.argmax(x, axis, output_type=tf.int32),
        "one_hot": lambda x, count: tf.one_hot(x, count),
        "softmax": lambda x: tf.nn.softmax(x),
        "log_softmax": lambda x: tf.nn.log_softmax(x),
        "logsumexp": lambda x: tf.reduce_logsumexp(x, -1),
        "matmul": lambda x, y: tf.matmul(x, y),
        "transpose": lambda x, axes=None: tf.transpose(x, axes),
        "stack": lambda arrays, axis=0: tf.stack(list(arrays), axis),
        "concatenate": lambda arrays, axis=0: tf.concat(list(arrays), axis),
        "take": lambda table, indices: tf.gather(table, indices),
        "sparse_cross_entropy": lambda labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits),
        "cross_entropy": lambda labels, logits: tf.nn.softmax_cross_entropy_with_logits(labels, logits),
        "sigmoid_cross_entropy": lambda labels, logits: tf.nn.sigmoid_cross_entropy_with_logits(labels, logits),
        "all_rows": lambda x: x,
    }
    functions = _under_same_names(tf) | own
    return Arrays(keras_name="tf_keras", **functions)


def _of_jax(jnp: ModuleType) -> Arrays:
    nn = importlib.import_module("jax.nn")
    lax = importlib.import_module("jax.lax")
    own: dict[str, Function] = {
        "rsqrt": lax.rsqrt,
        "to_float": lambda x: jnp.asarray(x, jnp.float32),
        # JAX's own has slope 1 at 0, TensorFlow's 0, which a loss of exact hits would show.
        "abs": lambda x: x * lax.stop_gradient(jnp.sign(x)),
        "sigmoid": nn.sigmoid,
        "softplus": nn.softplus,
        "stop_gradient": lax.stop_gradient,
        "argmax": lambda x, axis=-1: jnp.argmax(x, axis).astype("int32"),
        "one_hot": lambda x, count: nn.one_hot(x, count),
        "softmax": lambda x: nn.softmax(x, -1),
        "log_softmax": lambda x: nn.log_softmax(x, -1),
        "logsumexp": lambda x: nn.logsumexp(x, -1),
    }
    return _like_numpy(jnp, own)


def _of_numpy(numpy: ModuleType) -> Arrays:
    def logsumexp(x: Tensor) -> Tensor:
        top = numpy.max(x, -1, keepdims=True)
        top = numpy.where(numpy.isfinite(top), top, 0)
        return numpy.log(numpy.sum(numpy.exp(x - top), -1)) + numpy.squeeze(top, -1)

    def log_softmax(x: Tensor) -> Tensor:
        return x - logsumexp(x)[..., None]

    def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        # A Python float would widen float32 arrays to float64.
        if isinstance(x, float):
            x = numpy.float32(x)
        if isinstance(y, float):
            y = numpy.float32(y)
        return numpy.where(condition, x, y)

    own: dict[str, Function] = {
        "rsqrt": lambda x: 1.0 / numpy.sqrt(x),
        "to_float": lambda x: numpy.asarray(x, numpy.float32),
        "sigmoid": lambda x: 0.5 * (1.0 + numpy.tanh(0.5 * x)),
        "softplus": lambda x: numpy.logaddexp(x, numpy.zeros_like(x)),
        "stop_gradient": lambda x: x,
        "where": where,
        "argmax": lambda x, axis=-1: numpy.argmax(x, axis).astype(numpy.int32),
        "one_hot": lambda x, count: (numpy.asarray(x)[..., None] == numpy.arange(count)).astype(numpy.float32),
        "softmax": lambda x: numpy.exp(log_softmax(x)),
        "log_softmax": log_softmax,
        "logsumexp": logsumexp,
    }
    return _like_numpy(numpy, own)


def _like_numpy(module: ModuleType, own: dict[str, Function]) -> Arrays:
    """Returns the functions of a library that has NumPy's under NumPy's names."""

    def sparse_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
        # By a product with the one-hot labels: a gather along a sharded dim would communicate.
        label_logits = module.sum(logits * own["one_hot"](labels, module.shape(logits)[-1]), -1)
        return own["logsumexp"](logits) - label_logits

    def sigmoid_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
        # max(x, 0) - x * z + log(1 + exp(-|x|)), chosen as in TensorFlow: nothing overflows, and the slope at 0 is
        # right.
        is_positive = logits >= 0
        linear = module.where(is_positive, logits, module.zeros_like(logits)) - logits * labels
        return linear + module.log1p(module.exp(module.where(is_positive, -logits, logits)))

    shared: dict[str, Function] = {
        "cast": lambda x, dtype: module.asarray(x).astype(dtype),
        "take": lambda table, indices: module.take(table, indices, axis=0),
        "sparse_cross_entropy": sparse_cross_entropy,
        "cross_entropy": lambda labels, logits: -module.sum(labels * own["log_softmax"](logits), -1),
        "sigmoid_cross_entropy": sigmoid_cross_entropy,
        "all_rows": lambda x: x,
    }
    functions = _under_same_names(module) | shared | own
    return Arrays(keras_name="keras", **functions)


def token_losses(ops: Arrays, logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each token's cross-entropy in nats, and 1 where the most probable token is its label, else 0.

    Both are computed from sums and extremes over the vocabulary, which each device takes of its own shard: a gather of
    a label's logit, or an argmax, would bring the shards together.

    Args:
      logits: (..., V) of a vocabulary of V tokens, in any precision; a mesh axis may shard V.
      label: int32 (...), from 0 to V - 1. Both results are float32 (...).
    """
    # Sums of exponentials over a vocabulary lose most of their digits in 16 bits.
    if logits.dtype.name in _HALF_PRECISION:
        logits = ops.cast(logits, "float32")
    size = int(logits.shape[-1])
    # Learning rates are evaluated before a config is known to be valid, which needs no NumPy.
    np = importlib.import_module("numpy")
    token = np.arange(size, dtype=np.int32).reshape((1,) * len(label.shape) + (size,))
    is_label = ops.equal(ops.expand_dims(label, -1), token)
    # Subtracting the largest logit keeps the exponentials from overflowing; it has no gradient, as it cancels out.
    largest = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    shifted = logits - largest
    label_logit = ops.sum(ops.where(is_label, shifted, ops.zeros_like(shifted)), axis=-1)
    nats = ops.log(ops.sum(ops.exp(shifted), axis=-1)) - label_logit
    # The first of the largest, as argmax returns it: the smallest number among the tokens that have the largest logit.
    is_largest = ops.greater_equal(ops.stop_gradient(shifted), 0.0)
    past_the_end = ops.cast(ops.zeros_like(shifted), "int32") + size
    first = ops.min(ops.where(is_largest, ops.zeros_like(past_the_end) + token, past_the_end), axis=-1)
    return nats, ops.cast(ops.equal(first, label), "float32")
