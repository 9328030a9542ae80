"""The functions of arrays that losses and metrics are written in, under NumPy's names, for each library.

One text then serves every engine. Each function has the form that its engine computes well, of operations that DTensor
can lay on a mesh: no gather along a dim that may be split, no index or new axis in brackets (`x[:, 0]`, `x[:, None]`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from runner.task import token_losses

Function = Callable[..., Any]  # of the library's own arrays, which no type spans


@dataclass(frozen=True)
class Namespace:
    """Functions of one library's arrays. `axis` may be a number or a tuple, and is None for all dims.

    Attributes:
      name: of the library, `numpy`, `tensorflow` or `jax.numpy`.
      keras_name: of the Keras whose functions take the same arrays, see `keras`.
      cast: (x, dtype) with the dtype's name, as `float32`.
      sum: (x, axis=None, keepdims=False), as `mean`, `max` and `min`.
      mean: average.
      max: largest.
      min: smallest.
      abs: elementwise, as the functions of one array up to `tanh`.
      sign: -1, 0 or 1.
      square: x * x.
      sqrt: square root.
      exp: e**x.
      log: natural logarithm.
      log1p: log(1 + x).
      sigmoid: 1 / (1 + exp(-x)).
      softplus: log(1 + exp(x)).
      tanh: hyperbolic tangent.
      isfinite: whether a number is neither infinite nor NaN.
      zeros_like: zeros of an array's shape and dtype.
      ones_like: ones, likewise.
      stop_gradient: the same values, constant for gradients.
      maximum: (x, y), elementwise, as the functions of two arrays up to `logical_or`.
      minimum: the lesser.
      equal: as bool.
      not_equal: as bool.
      greater: as bool.
      greater_equal: as bool.
      less: as bool.
      less_equal: as bool.
      logical_and: of bools.
      logical_or: of bools.
      logical_not: of a bool.
      where: (condition, x, y), elementwise; all of one rank, or `x` and `y` numbers.
      clip: (x, low, high).
      argmax: (x, axis) -> int32, the first of equals.
      one_hot: (x, count) -> float32 with a last dim of `count`; a row of zeros for what is not from 0 to count - 1.
      softmax: over the last dim, as `log_softmax` and `logsumexp`.
      log_softmax: its logarithm.
      logsumexp: logarithm of the sum of exponentials.
      matmul: (x, y).
      transpose: (x, axes=None).
      reshape: (x, shape).
      expand_dims: (x, axis).
      squeeze: (x, axis), a dim of size 1.
      stack: (arrays, axis).
      concatenate: (arrays, axis).
      sparse_cross_entropy: (labels, logits), int32 (...) and float32 (..., C) -> nats (...).
      cross_entropy: (probabilities, logits), both float32 (..., C) -> nats (...).
      sigmoid_cross_entropy: (labels, logits), of one shape, labels from 0 to 1 -> nats, elementwise.
      take: (table, indices), (V,) and int32 (...) -> the table's entries (...), of a table that is not split.
      head_losses: (hidden, head, bias, label, weight), see `runner.task.token_losses.linear`.
    """

    name: str
    keras_name: str
    cast: Function
    sum: Function
    mean: Function
    max: Function
    min: Function
    abs: Function
    sign: Function
    square: Function
    sqrt: Function
    exp: Function
    log: Function
    log1p: Function
    sigmoid: Function
    softplus: Function
    tanh: Function
    isfinite: Function
    zeros_like: Function
    ones_like: Function
    stop_gradient: Function
    maximum: Function
    minimum: Function
    equal: Function
    not_equal: Function
    greater: Function
    greater_equal: Function
    less: Function
    less_equal: Function
    logical_and: Function
    logical_or: Function
    logical_not: Function
    where: Function
    clip: Function
    argmax: Function
    one_hot: Function
    softmax: Function
    log_softmax: Function
    logsumexp: Function
    matmul: Function
    transpose: Function
    reshape: Function
    expand_dims: Function
    squeeze: Function
    stack: Function
    concatenate: Function
    sparse_cross_entropy: Function
    cross_entropy: Function
    sigmoid_cross_entropy: Function
    take: Function
    head_losses: Function

    @property
    def keras(self) -> ModuleType:
        """Returns the engine's Keras, as for `ops.keras.losses.kl_divergence(labels, outputs)`."""
        return importlib.import_module(self.keras_name)

    def shape(self, x: Any) -> tuple[int, ...]:
        """Returns an array's shape."""
        return tuple(int(size) for size in x.shape)


_FIELDS = tuple(field.name for field in fields(Namespace))
_NO_TOKENS: dict[str, Function] = {"head_losses": lambda *_: None}  # until `_with_tokens`


def of(module: ModuleType) -> Namespace:
    """Returns the functions of a library's arrays.

    Args:
      module: `numpy`, `tensorflow` or `jax.numpy`, imported.

    Raises:
      ValueError: another one.
    """
    makers = {"numpy": _of_numpy, "tensorflow": _of_tensorflow, "jax.numpy": _of_jax}
    if module.__name__ not in makers:
        raise ValueError(f"namespaces are those of {', '.join(makers)}, not of {module.__name__}")
    return makers[module.__name__](module)


def _with_tokens(ops: Namespace) -> Namespace:
    """Returns a namespace with what is written in its own functions."""
    return replace(ops, head_losses=partial(token_losses.linear, ops))


def _named(module: ModuleType) -> dict[str, Function]:
    """Returns those of the functions that a module has under the same name."""
    return {name: getattr(module, name) for name in _FIELDS if name != "name" and hasattr(module, name)}


def _of_tensorflow(tf: Any) -> Namespace:
    def reduced(function: Function) -> Function:
        return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)

    def where(condition: Any, x: Any, y: Any) -> Any:
        # DTensor does not broadcast a choice: numbers are filled up to the shape of the others.
        like = next((each for each in (x, y) if tf.is_tensor(each)), tf.cast(condition, tf.float32))
        x, y = (each if tf.is_tensor(each) else tf.ones_like(like) * each for each in (x, y))
        return tf.where(condition, x, y)

    own: dict[str, Function] = {
        "sum": reduced(tf.reduce_sum),
        "mean": reduced(tf.reduce_mean),
        "max": reduced(tf.reduce_max),
        "min": reduced(tf.reduce_min),
        "log": tf.math.log,
        "log1p": tf.math.log1p,
        "sigmoid": tf.math.sigmoid,
        "softplus": tf.math.softplus,
        "isfinite": tf.math.is_finite,
        "logical_and": tf.logical_and,
        "logical_or": tf.logical_or,
        "logical_not": tf.logical_not,
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
        "sparse_cross_entropy": lambda labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits),
        "cross_entropy": lambda labels, logits: tf.nn.softmax_cross_entropy_with_logits(labels, logits),
        "sigmoid_cross_entropy": lambda labels, logits: tf.nn.sigmoid_cross_entropy_with_logits(labels, logits),
        "take": lambda table, indices: tf.gather(table, indices),
    }
    return _with_tokens(Namespace(name="tensorflow", keras_name="tf_keras", **_NO_TOKENS, **{**_named(tf), **own}))


def _of_jax(jnp: Any) -> Namespace:
    nn = importlib.import_module("jax.nn")
    lax = importlib.import_module("jax.lax")

    def sparse_cross_entropy(labels: Any, logits: Any) -> Any:
        # By a product with the one-hot labels: a gather along a split dim would communicate.
        chosen = jnp.sum(logits * nn.one_hot(labels, logits.shape[-1]), -1)
        return nn.logsumexp(logits, -1) - chosen

    own: dict[str, Function] = {
        # Its own has slope 1 at 0, TensorFlow's 0, which a loss of exact hits would show.
        "abs": lambda x: x * lax.stop_gradient(jnp.sign(x)),
        "sigmoid": nn.sigmoid,
        "softplus": nn.softplus,
        "stop_gradient": lax.stop_gradient,
        "argmax": lambda x, axis=-1: jnp.argmax(x, axis).astype("int32"),
        "one_hot": lambda x, count: nn.one_hot(x, count),
        "softmax": lambda x: nn.softmax(x, -1),
        "log_softmax": lambda x: nn.log_softmax(x, -1),
        "logsumexp": lambda x: nn.logsumexp(x, -1),
        "sparse_cross_entropy": sparse_cross_entropy,
    }
    return _like_numpy(jnp, "jax.numpy", own)


def _of_numpy(numpy: Any) -> Namespace:
    def logsumexp(x: Any) -> Any:
        top = np.max(x, -1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0)
        return np.log(np.sum(np.exp(x - top), -1)) + np.squeeze(top, -1)

    def log_softmax(x: Any) -> Any:
        return x - logsumexp(x)[..., None]

    def where(condition: Any, x: Any, y: Any) -> Any:
        x, y = (np.float32(each) if isinstance(each, float) else each for each in (x, y))
        return np.where(condition, x, y)

    def one_hot(x: Any, count: int) -> Any:
        return (np.asarray(x)[..., None] == np.arange(count)).astype(np.float32)

    own: dict[str, Function] = {
        "sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
        "softplus": lambda x: np.logaddexp(x, np.zeros_like(x)),
        "stop_gradient": lambda x: x,
        "where": where,
        "argmax": lambda x, axis=-1: np.argmax(x, axis).astype(np.int32),
        "one_hot": one_hot,
        "softmax": lambda x: np.exp(log_softmax(x)),
        "log_softmax": log_softmax,
        "logsumexp": logsumexp,
        "sparse_cross_entropy": lambda labels, logits: (
            logsumexp(logits) - np.sum(logits * one_hot(labels, np.shape(logits)[-1]), -1)
        ),
    }
    return _like_numpy(numpy, "numpy", own)


def _like_numpy(module: Any, name: str, own: dict[str, Function]) -> Namespace:
    """Returns the namespace of a library that has NumPy's functions under NumPy's names."""

    def sigmoid_cross_entropy(labels: Any, logits: Any) -> Any:
        # max(x, 0) - x * z + log(1 + exp(-|x|)), chosen as in TensorFlow: nothing overflows, the slope at 0 is right.
        above = logits >= 0
        part = module.where(above, logits, module.zeros_like(logits)) - logits * labels
        return part + module.log1p(module.exp(module.where(above, -logits, logits)))

    shared: dict[str, Function] = {
        "cast": lambda x, dtype: module.asarray(x).astype(dtype),
        "cross_entropy": lambda labels, logits: -module.sum(labels * own["log_softmax"](logits), -1),
        "sigmoid_cross_entropy": sigmoid_cross_entropy,
        "take": lambda table, indices: module.take(table, indices, axis=0),
    }
    return _with_tokens(Namespace(name=name, keras_name="keras", **_NO_TOKENS, **{**_named(module), **shared, **own}))
