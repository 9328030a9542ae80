"""Keras's regression losses by name, elementwise, on every engine's arrays.

https://keras.io/api/losses/regression_losses/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from runner.arrays import Arrays
from runner.task.base import Tensor

Loss = Callable[[Arrays, Tensor, Tensor], Tensor]

_TINY = 1e-7  # Keras's epsilon
_SHORTEST = 1e-12  # square of a vector's length, below which it is not made one of length 1


def _squared(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.square(output - target)


def _absolute(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.abs(target - output)


def _percentage(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return 100.0 * ops.abs((target - output) / ops.maximum(ops.abs(target), _TINY))


def _logarithmic(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.square(ops.log(ops.maximum(output, _TINY) + 1.0) - ops.log(ops.maximum(target, _TINY) + 1.0))


def _log_cosh(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    error = output - target
    return error + ops.softplus(-2.0 * error) - math.log(2.0)


def _poisson(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return output - target * ops.log(output + _TINY)


def _cosine(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """One number a vector: -1 where both point the same way."""

    def unit(x: Tensor) -> Tensor:
        return x / ops.sqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), _SHORTEST))

    return -ops.sum(unit(target) * unit(output), axis=-1)


def _huber(delta: float) -> Loss:
    def loss(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
        error = ops.abs(output - target)
        near = 0.5 * ops.square(error)
        far = delta * error - 0.5 * delta * delta
        return ops.where(ops.less_equal(error, delta), near, far)

    return loss


_LOSSES: Mapping[str, Loss] = {
    "mean_squared_error": _squared,
    "mean_absolute_error": _absolute,
    "mean_absolute_percentage_error": _percentage,
    "mean_squared_logarithmic_error": _logarithmic,
    "log_cosh": _log_cosh,
    "poisson": _poisson,
    "cosine_similarity": _cosine,
}
HUBER = "huber"
NAMES = (*_LOSSES, HUBER)
OF_THE_UNIT = ("mean_absolute_percentage_error", "mean_squared_logarithmic_error", "poisson", "cosine_similarity")


def named(name: str, delta: float) -> Loss:
    """Returns a loss of `NAMES`: (ops, target, output), both (B, ..., K), to terms whose mean is an example's loss.

    Args:
      name: Keras's.
      delta: of `huber`.
    """
    return _huber(delta) if name == HUBER else _LOSSES[name]


def mean_by_example(ops: Arrays, terms: Tensor) -> Tensor:
    """Returns the mean (B,) of each example's terms (B, ...)."""
    return terms if len(terms.shape) == 1 else ops.mean(terms, axis=tuple(range(1, len(terms.shape))))
