"""A call of every function of a namespace, on arrays that any library takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.arrays import Arrays

_rng = np.random.default_rng(5)
A = _rng.normal(size=(3, 4)).astype(np.float32)
B = _rng.normal(size=(3, 4)).astype(np.float32)
P = np.abs(A) + 0.1
WHOLE = np.array([2, 0, 3], np.int32)
_EXTREME = np.array([[1e4, -1e4, 0.0], [-80.0, 80.0, 0.0]], np.float32)


def _constant(ops: Arrays, x: np.ndarray) -> Any:
    return ops.cast(x, str(x.dtype))  # an array of the library


def _unary(name: str, x: np.ndarray) -> Callable[[Arrays], Any]:
    return lambda ops: getattr(ops, name)(_constant(ops, x))


def _binary(name: str, x: np.ndarray, y: np.ndarray) -> Callable[[Arrays], Any]:
    return lambda ops: getattr(ops, name)(_constant(ops, x), _constant(ops, y))


def _reduced(name: str, axis: Any, keepdims: bool) -> Callable[[Arrays], Any]:
    return lambda ops: getattr(ops, name)(_constant(ops, A), axis=axis, keepdims=keepdims)


def _calls() -> dict[str, Callable[[Arrays], Any]]:
    found: dict[str, Callable[[Arrays], Any]] = {}
    for name in ("sum", "mean", "max", "min"):
        for axis in (None, 0, -1, (0, 1)):
            found[f"{name} {axis}"] = _reduced(name, axis, False)
        found[f"{name} kept"] = _reduced(name, -1, True)
    for name in (
        "abs",
        "sign",
        "square",
        "floor",
        "cos",
        "exp",
        "sigmoid",
        "softplus",
        "tanh",
        "zeros_like",
        "ones_like",
    ):
        found[name] = _unary(name, A)
    for name in ("sigmoid", "softplus", "tanh"):
        found[f"{name} extreme"] = _unary(name, _EXTREME)
    for name in ("sqrt", "rsqrt", "log", "log1p"):
        found[name] = _unary(name, P)
    for name in ("stop_gradient", "softmax", "log_softmax", "logsumexp", "transpose"):
        found[name] = _unary(name, A)
    for name in ("softmax", "log_softmax", "logsumexp"):
        found[f"{name} extreme"] = _unary(name, _EXTREME)
    pairs = ("maximum", "minimum", "equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    for name in pairs:
        found[name] = _binary(name, A, B)
        found[f"{name} itself"] = _binary(name, A, A)
    found["matmul"] = lambda ops: ops.matmul(_constant(ops, A), ops.transpose(_constant(ops, B)))
    found["transpose axes"] = lambda ops: ops.transpose(_constant(ops, A.reshape(3, 2, 2)), (2, 0, 1))
    found["where"] = lambda ops: ops.where(_constant(ops, A > 0), _constant(ops, A), _constant(ops, B))
    found["where number"] = lambda ops: ops.where(_constant(ops, A > 0), _constant(ops, A), -1.0)
    found["where numbers"] = lambda ops: ops.where(_constant(ops, A > 0), 1.0, 0.0)
    found["clip"] = lambda ops: ops.clip(_constant(ops, A), -0.5, 0.5)
    found["argmax"] = lambda ops: ops.argmax(_constant(ops, A), -1)
    found["argmax equal"] = lambda ops: ops.argmax(_constant(ops, np.ones((2, 3), np.float32)), -1)
    found["argmax 0"] = lambda ops: ops.argmax(_constant(ops, A), 0)
    found["one_hot"] = lambda ops: ops.one_hot(_constant(ops, WHOLE), 4)
    found["one_hot outside"] = lambda ops: ops.one_hot(_constant(ops, np.array([-1, 4, 1], np.int32)), 4)
    found["reshape"] = lambda ops: ops.reshape(_constant(ops, A), (2, 6))
    found["expand_dims"] = lambda ops: ops.expand_dims(_constant(ops, A), -1)
    found["squeeze"] = lambda ops: ops.squeeze(_constant(ops, A[:, :1]), -1)
    found["stack"] = lambda ops: ops.stack([_constant(ops, A), _constant(ops, B)], 1)
    found["concatenate"] = lambda ops: ops.concatenate([_constant(ops, A), _constant(ops, B)], 1)
    found["cast int"] = lambda ops: ops.cast(_constant(ops, 3 * A), "int32")
    found["cast bool"] = lambda ops: ops.cast(_constant(ops, A > 0), "float32")
    found["shape"] = lambda ops: np.array(ops.shape(_constant(ops, A)))
    found["sparse_cross_entropy"] = lambda ops: ops.sparse_cross_entropy(_constant(ops, WHOLE), _constant(ops, A))
    found["cross_entropy"] = lambda ops: ops.cross_entropy(ops.softmax(_constant(ops, B)), _constant(ops, A))
    found["sigmoid_cross_entropy"] = lambda ops: ops.sigmoid_cross_entropy(
        ops.sigmoid(_constant(ops, B)), _constant(ops, A)
    )
    found["sigmoid_cross_entropy extreme"] = lambda ops: ops.sigmoid_cross_entropy(
        _constant(ops, np.array([[1, 0, 1], [1, 0, 0]], np.float32)), _constant(ops, _EXTREME)
    )
    found["power"] = lambda ops: ops.power(_constant(ops, P), _constant(ops, B))
    found["to_float"] = lambda ops: ops.to_float(_constant(ops, A > 0))
    found["to_float number"] = lambda ops: ops.to_float(0.1)
    found["take"] = lambda ops: ops.take(_constant(ops, A), _constant(ops, WHOLE % 3))
    found["all_rows"] = _unary("all_rows", A)
    return found


CALLS: Mapping[str, Callable[[Arrays], Any]] = _calls()
