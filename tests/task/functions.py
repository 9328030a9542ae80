"""A call of every function of a namespace, on arrays that any library takes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.arrays import Arrays

_rng = np.random.default_rng(5)
A = _rng.normal(size=(3, 4)).astype(np.float32)
B = _rng.normal(size=(3, 4)).astype(np.float32)
P = np.abs(A) + 0.1
WHOLE = np.array([2, 0, 3], np.int32)
_SHARES = P / P.sum(axis=-1, keepdims=True)
_TRUE = np.array([[1, 0, 1], [1, 0, 0]], np.float32)
_EXTREME = np.array([[1e4, -1e4, 0.0], [-80.0, 80.0, 0.0]], np.float32)


Call = Callable[[Arrays], Any]


def _call(name: str, *given: Any, **options: Any) -> Call:
    """Returns the call of a function, whose NumPy arrays become arrays of the library."""
    return lambda ops: getattr(ops, name)(*(_of_library(ops, each) for each in given), **options)


def _of_library(ops: Arrays, value: Any) -> Any:
    if isinstance(value, list):
        return [_of_library(ops, each) for each in value]
    return ops.cast(value, str(value.dtype)) if isinstance(value, np.ndarray) else value


def _calls() -> dict[str, Call]:
    found: dict[str, Call] = {}
    for name in ("sum", "mean", "max", "min"):
        for axis in (None, 0, -1, (0, 1)):
            found[f"{name} {axis}"] = _call(name, A, axis=axis, keepdims=False)
        found[f"{name} kept"] = _call(name, A, axis=-1, keepdims=True)
    for name in (
        *("abs", "sign", "square", "floor", "cos", "exp", "sigmoid", "softplus", "tanh", "zeros_like", "ones_like"),
        *("stop_gradient", "softmax", "log_softmax", "logsumexp", "transpose", "all_rows"),
    ):
        found[name] = _call(name, A)
    for name in ("sqrt", "rsqrt", "log", "log1p"):
        found[name] = _call(name, P)
    for name in ("sigmoid", "softplus", "tanh", "softmax", "log_softmax", "logsumexp"):
        found[f"{name} extreme"] = _call(name, _EXTREME)
    for name in ("maximum", "minimum", "equal", "not_equal", "greater", "greater_equal", "less", "less_equal"):
        found[name] = _call(name, A, B)
        found[f"{name} itself"] = _call(name, A, A)
    return found | {
        "matmul": _call("matmul", A, B.T),
        "transpose axes": _call("transpose", A.reshape(3, 2, 2), (2, 0, 1)),
        "where": _call("where", A > 0, A, B),
        "where number": _call("where", A > 0, A, -1.0),
        "where numbers": _call("where", A > 0, 1.0, 0.0),
        "clip": _call("clip", A, -0.5, 0.5),
        "argmax": _call("argmax", A, -1),
        "argmax equal": _call("argmax", np.ones((2, 3), np.float32), -1),
        "argmax 0": _call("argmax", A, 0),
        "one_hot": _call("one_hot", WHOLE, 4),
        "one_hot outside": _call("one_hot", np.array([-1, 4, 1], np.int32), 4),
        "reshape": _call("reshape", A, (2, 6)),
        "expand_dims": _call("expand_dims", A, -1),
        "squeeze": _call("squeeze", A[:, :1], -1),
        "stack": _call("stack", [A, B], 1),
        "concatenate": _call("concatenate", [A, B], 1),
        "cast int": _call("cast", 3 * A, "int32"),
        "cast bool": _call("cast", A > 0, "float32"),
        "shape": lambda ops: np.array(ops.shape(_of_library(ops, A))),
        "sparse_cross_entropy": _call("sparse_cross_entropy", WHOLE, A),
        "cross_entropy": _call("cross_entropy", _SHARES, A),
        "sigmoid_cross_entropy": _call("sigmoid_cross_entropy", P / P.max(), A),
        "sigmoid_cross_entropy extreme": _call("sigmoid_cross_entropy", _TRUE, _EXTREME),
        "power": _call("power", P, B),
        "to_float": _call("to_float", A > 0),
        "to_float number": _call("to_float", 0.1),
        "take": _call("take", A, WHOLE % 3),
    }


CALLS: Mapping[str, Call] = _calls()
