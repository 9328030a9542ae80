"""Keras's losses of numbers and of probabilities by name, on every engine's arrays.

https://keras.io/api/losses/regression_losses/, probabilistic_losses/ and hinge_losses/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.arrays import Arrays, Tensor
from runner.config.values import check_name
from runner.errors import invalid
from runner.task import probabilities

# (ops, target, output), both (B, ..., K) -> terms whose mean is an example's loss.
Loss = Callable[[Arrays, Tensor, Tensor], Tensor]

KEY = "task.loss"
# Keras's epsilon, so that the losses are Keras's near 0 as well.
_EPSILON = 1e-7
# Keras's default weight of the focal cross-entropy of several classes.
_FOCAL_ALPHA = 0.25
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


def _binary_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    inside = probabilities.clipped(ops, output)
    return -(target * ops.log(inside) + (1.0 - target) * ops.log(1.0 - inside))


def _focal(ops: Arrays, target: Tensor, probability: Tensor, nats: Tensor) -> Tensor:
    """Returns cross-entropies times (1 - probability of the label) ** 2 (Lin et al., Focal Loss, 2017)."""
    of_label = target * probability + (1.0 - target) * (1.0 - probability)
    return ops.square(1.0 - of_label) * nats


def _binary_focal_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return _focal(ops, target, output, _binary_crossentropy(ops, target, output))


def _binary_focal_crossentropy_of_logits(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return _focal(ops, target, ops.sigmoid(output), _sigmoid_crossentropy(ops, target, output))


def _sigmoid_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.sigmoid_cross_entropy(target, output)


def _categorical_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return probabilities.cross_entropy(ops, target, output)


def _softmax_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return -ops.sum(target * ops.log_softmax(output), axis=-1)


def _categorical_focal_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns 1/4 * (1 - probability) ** 2 * cross-entropy, Keras's defaults of alpha and gamma (Lin et al., 2017)."""
    share = probabilities.clipped(ops, output / ops.sum(output, axis=-1, keepdims=True))
    return ops.sum(-_FOCAL_ALPHA * ops.square(1.0 - share) * target * ops.log(share), axis=-1)


def _categorical_focal_crossentropy_of_logits(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return _categorical_focal_crossentropy(ops, target, ops.softmax(output))


def _generalized_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns (1 - p ** q) / q for the label's probability p and Keras's default q = 1/2 (Zhang and Sabuncu, 2018)."""
    return 2.0 * (1.0 - ops.sqrt(ops.sum(target * output, axis=-1)))


def _kl_divergence(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    target = ops.clip(target, _EPSILON, 1.0)
    output = ops.clip(output, _EPSILON, 1.0)
    return ops.sum(target * (ops.log(target) - ops.log(output)), axis=-1)


def _hinge(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    # Keras takes labels 0 and 1 too, and makes them -1 and 1.
    sign = ops.where(ops.equal(target, 0.0), target - 1.0, target)
    return ops.maximum(1.0 - sign * output, 0.0)


def _squared_hinge(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.square(_hinge(ops, target, output))


def _categorical_hinge(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    of_label = ops.sum(target * output, axis=-1)
    of_others = ops.max((1.0 - target) * output, axis=-1)
    return ops.maximum(of_others - of_label + 1.0, 0.0)


def _dice(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns one number per example, 1 - 2 * overlap / (sum of the target + sum of the output)."""
    axes = tuple(range(1, len(target.shape)))
    overlap = ops.sum(target * output, axis=axes)
    return 1.0 - 2.0 * overlap / (ops.sum(target, axis=axes) + ops.sum(output, axis=axes) + _EPSILON)


def _tversky(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns one number per example, 1 - overlap / (overlap + half of what only one of target and output has).

    The halves are Keras's defaults of alpha and beta (Salehi et al., Tversky Loss Function, 2017).
    """
    axes = tuple(range(1, len(target.shape)))
    overlap = ops.sum(target * output, axis=axes)
    of_target = ops.sum((1.0 - output) * target, axis=axes)
    of_output = ops.sum(output * (1.0 - target), axis=axes)
    return 1.0 - overlap / (overlap + 0.5 * of_target + 0.5 * of_output + _EPSILON)


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
    "binary_crossentropy": _binary_crossentropy,
    "binary_focal_crossentropy": _binary_focal_crossentropy,
    "categorical_crossentropy": _categorical_crossentropy,
    "categorical_focal_crossentropy": _categorical_focal_crossentropy,
    "categorical_generalized_cross_entropy": _generalized_crossentropy,
    "kl_divergence": _kl_divergence,
    "hinge": _hinge,
    "squared_hinge": _squared_hinge,
    "categorical_hinge": _categorical_hinge,
    "dice": _dice,
    "tversky": _tversky,
}


@dataclass(frozen=True)
class OfLogits:
    """A loss that can also be computed from logits.

    Attributes:
      loss: of logits.
      activation: name of the function in `Arrays` that makes probabilities of them.
    """

    loss: Loss
    activation: str


_OF_LOGITS: Mapping[str, OfLogits] = {
    "binary_crossentropy": OfLogits(_sigmoid_crossentropy, "sigmoid"),
    "binary_focal_crossentropy": OfLogits(_binary_focal_crossentropy_of_logits, "sigmoid"),
    "categorical_crossentropy": OfLogits(_softmax_crossentropy, "softmax"),
    "categorical_focal_crossentropy": OfLogits(_categorical_focal_crossentropy_of_logits, "softmax"),
}
# Losses that take logits if the config says so.
WITH_LOGITS = tuple(_OF_LOGITS)
HUBER = "huber"
NAMES = (*_LOSSES, HUBER)
# Losses whose value changes if a number is added to both target and output, so that a standardized target is another
# problem.
NOT_SHIFT_INVARIANT = (
    "mean_absolute_percentage_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "cosine_similarity",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "kl_divergence",
    "hinge",
    "squared_hinge",
    "categorical_hinge",
    "dice",
    "tversky",
)
# Losses whose targets are probabilities, or 0 and 1, and whose outputs are probabilities.
OF_PROBABILITIES = (
    *WITH_LOGITS,
    "categorical_generalized_cross_entropy",
    "kl_divergence",
    "dice",
    "tversky",
)
# Keras's losses that are no losses of numbers: what computes each of them here.
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "SparseCategoricalCrossentropy": (
        "compares class numbers with probabilities",
        "set task=classification, or task=positions for one class per position",
    ),
    "CTC": ("aligns labels with steps", "set task=ctc"),
    "Circle": ("compares the rows of a batch", "set task=custom with a loss that reads the batch"),
}
# Keras's short names.
SHORT = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "bce": "binary_crossentropy",
}


def check(name: str) -> None:
    """Checks the name of a loss.

    Raises:
      ConfigError: it is none of `NAMES`; the error names the task or the spelling that is meant, if there is one.
    """
    if name in NAMES:
        return
    plain = without_case(name)
    for other, (problem, fix) in _ELSEWHERE.items():
        if plain == without_case(other):
            raise invalid(KEY, name, problem=f"{problem}, which task=regression can't", fix=fix)
    for known in NAMES:
        if plain == without_case(known) or SHORT.get(plain) == known:
            raise invalid(
                KEY, name, problem="losses are called by the names of Keras's functions", fix=f"set {KEY}={known}"
            )
    check_name(KEY, name, NAMES)


def without_case(name: str) -> str:
    """Returns a name as Keras's classes and functions share it."""
    return name.replace("_", "").lower()


def named(name: str, delta: float, *, from_logits: bool = False) -> Loss:
    """Returns a loss of `NAMES`.

    Args:
      name: Keras's.
      delta: of `huber`.
      from_logits: the outputs are logits; only for a loss of `WITH_LOGITS`.
    """
    if name == HUBER:
        return _huber(delta)
    if from_logits:
        return _OF_LOGITS[name].loss
    return _LOSSES[name]


def as_probabilities(ops: Arrays, name: str, logits: Tensor) -> Tensor:
    """Returns the probabilities (B, ..., K) of the logits of a loss of `WITH_LOGITS`."""
    activation: Callable[..., Tensor] = getattr(ops, _OF_LOGITS[name].activation)
    return activation(logits)


def mean_by_example(ops: Arrays, terms: Tensor) -> Tensor:
    """Returns the mean (B,) of each example's terms (B, ...)."""
    rank = len(terms.shape)
    if rank == 1:
        return terms
    return ops.mean(terms, axis=tuple(range(1, rank)))
