"""Keras's regression losses by name, elementwise, on every engine's arrays.

https://keras.io/api/losses/regression_losses/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from runner.arrays import Arrays, Tensor

# (ops, target, output), both (B, ..., K) -> terms whose mean is an example's loss.
Loss = Callable[[Arrays, Tensor, Tensor], Tensor]

# Keras's epsilon, so that the losses are Keras's near 0 as well.
_EPSILON = 1e-7
# Least squared length of a vector that is normalized, as in Keras; it keeps the division by the length finite.
_LEAST_SQUARED_LENGTH = 1e-12


def _squared_error(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.square(output - target)


def _absolute_error(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.abs(target - output)


def _absolute_percentage_error(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return 100.0 * ops.abs((target - output) / ops.maximum(ops.abs(target), _EPSILON))


def _squared_logarithmic_error(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    output_log = ops.log(ops.maximum(output, _EPSILON) + 1.0)
    target_log = ops.log(ops.maximum(target, _EPSILON) + 1.0)
    return ops.square(output_log - target_log)


def _log_cosh(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    error = output - target
    return error + ops.softplus(-2.0 * error) - math.log(2.0)


def _poisson(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return output - target * ops.log(output + _EPSILON)


def _cosine_similarity(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns one number per vector: -1 if both have the same direction."""

    def normalized(x: Tensor) -> Tensor:
        squared_length = ops.sum(ops.square(x), axis=-1, keepdims=True)
        return x / ops.sqrt(ops.maximum(squared_length, _LEAST_SQUARED_LENGTH))

    return -ops.sum(normalized(target) * normalized(output), axis=-1)


def _huber(delta: float) -> Loss:
    def loss(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
        error = ops.abs(output - target)
        quadratic = 0.5 * ops.square(error)
        linear = delta * error - 0.5 * delta * delta
        return ops.where(ops.less_equal(error, delta), quadratic, linear)

    return loss


_LOSSES: Mapping[str, Loss] = {
    "mean_squared_error": _squared_error,
    "mean_absolute_error": _absolute_error,
    "mean_absolute_percentage_error": _absolute_percentage_error,
    "mean_squared_logarithmic_error": _squared_logarithmic_error,
    "log_cosh": _log_cosh,
    "poisson": _poisson,
    "cosine_similarity": _cosine_similarity,
}
HUBER = "huber"
NAMES = (*_LOSSES, HUBER)
# Losses whose value changes if a number is added to both target and output, so that a standardized target is another
# problem.
NOT_SHIFT_INVARIANT = (
    "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "cosine_similarity",
)


def named(name: str, delta: float) -> Loss:
    """Returns a loss of `NAMES`.

    Args:
      name: Keras's.
      delta: of `huber`.
    """
    if name == HUBER:
        return _huber(delta)
    return _LOSSES[name]


def mean_by_example(ops: Arrays, terms: Tensor) -> Tensor:
    """Returns the mean (B,) of each example's terms (B, ...)."""
    rank = len(terms.shape)
    if rank == 1:
        return terms
    return ops.mean(terms, axis=tuple(range(1, rank)))
