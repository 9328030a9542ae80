"""Keras's losses of numbers and of probabilities by name, on every engine's arrays.

https://keras.io/api/losses/regression_losses/, probabilistic_losses/ and hinge_losses/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner.arrays import Arrays, Tensor
from runner.config import values
from runner.config.build import build
from runner.config.schema_keras_losses import (
    OPTIONS,
    BinaryFocal,
    CategoricalFocal,
    Generalized,
    Huber,
    NoOptions,
    Smoothed,
    Tversky,
)
from runner.config.values import check_name
from runner.errors import invalid
from runner.task import probabilities

# (ops, target, output), both (B, ..., K) -> terms whose mean is an example's loss.
Loss = Callable[[Arrays, Tensor, Tensor], Tensor]

KEY = "task.loss"
OPTIONS_KEY = "task.loss_options"
# Functions of `Arrays` that make probabilities of logits.
SIGMOID = "sigmoid"
SOFTMAX = "softmax"
# Keras's epsilon, so that the losses are Keras's near 0 as well.
_EPSILON = 1e-7
# Exponents for which a function is used that is exact where a power is not: the gradient of a power at 0 is not finite
# on every engine.
_SQUARE = 2.0
_ROOT = 0.5
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


def _power(ops: Arrays, base: Tensor, exponent: float) -> Tensor:
    if exponent == _SQUARE:
        return ops.square(base)
    if exponent == _ROOT:
        return ops.sqrt(base)
    return ops.power(base, exponent)


def _smoothed(target: Tensor, smoothing: float, *, of_classes: bool) -> Tensor:
    """Returns labels (..., K) of which a fraction is spread over all classes, or moved to 0.5."""
    if not smoothing:
        return target
    mean = 1.0 / int(target.shape[-1]) if of_classes else 0.5
    return target * (1.0 - smoothing) + smoothing * mean


def _focal(ops: Arrays, target: Tensor, probability: Tensor, nats: Tensor, options: BinaryFocal) -> Tensor:
    """Returns cross-entropies times (1 - probability of the label) ** gamma (Lin et al., Focal Loss, 2017)."""
    of_label = target * probability + (1.0 - target) * (1.0 - probability)
    terms = _power(ops, 1.0 - of_label, options.gamma) * nats
    if options.apply_class_balancing:
        terms = terms * (target * options.alpha + (1.0 - target) * (1.0 - options.alpha))
    return terms


def _binary_focal_crossentropy(options: BinaryFocal, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    target = _smoothed(target, options.label_smoothing, of_classes=False)
    return _focal(ops, target, output, _binary_crossentropy(ops, target, output), options)


def _binary_focal_of_logits(options: BinaryFocal, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    target = _smoothed(target, options.label_smoothing, of_classes=False)
    return _focal(ops, target, ops.sigmoid(output), _sigmoid_crossentropy(ops, target, output), options)


def _of_smoothed(loss: Loss, options: Smoothed, *, of_classes: bool) -> Loss:
    """Returns a cross-entropy of smoothed labels."""

    def smoothed(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
        return loss(ops, _smoothed(target, options.label_smoothing, of_classes=of_classes), output)

    return smoothed


def _sigmoid_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return ops.sigmoid_cross_entropy(target, output)


def _categorical_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return probabilities.cross_entropy(ops, target, output)


def _softmax_crossentropy(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return -ops.sum(target * ops.log_softmax(output), axis=-1)


def _categorical_focal_crossentropy(options: CategoricalFocal, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns alpha * (1 - probability) ** gamma * cross-entropy (Lin et al., 2017)."""
    target = _smoothed(target, options.label_smoothing, of_classes=True)
    share = probabilities.clipped(ops, output / ops.sum(output, axis=-1, keepdims=True))
    return ops.sum(-options.alpha * _power(ops, 1.0 - share, options.gamma) * target * ops.log(share), axis=-1)


def _categorical_focal_of_logits(options: CategoricalFocal, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    return _categorical_focal_crossentropy(options, ops, target, ops.softmax(output))


def _generalized_crossentropy(options: Generalized, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns (1 - p ** q) / q for the label's probability p (Zhang and Sabuncu, 2018)."""
    return (1.0 - _power(ops, ops.sum(target * output, axis=-1), options.q)) / options.q


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


def _tversky(options: Tversky, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    """Returns one number per example, 1 - overlap / (overlap + weights of what only one of target and output has).

    Salehi et al., Tversky Loss Function (2017), with alpha and beta as Keras has them.
    """
    axes = tuple(range(1, len(target.shape)))
    overlap = ops.sum(target * output, axis=axes)
    of_target = ops.sum((1.0 - output) * target, axis=axes)
    of_output = ops.sum(output * (1.0 - target), axis=axes)
    return 1.0 - overlap / (overlap + options.alpha * of_target + options.beta * of_output + _EPSILON)


def _huber(options: Huber, ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
    delta = options.delta
    error = ops.abs(output - target)
    quadratic = 0.5 * ops.square(error)
    linear = delta * error - 0.5 * delta * delta
    return ops.where(ops.less_equal(error, delta), quadratic, linear)


_LOSSES: Mapping[str, Loss] = {
    "mean_squared_error": _squared_error,
    "mean_absolute_error": _absolute_error,
    "mean_absolute_percentage_error": _absolute_percentage_error,
    "mean_squared_logarithmic_error": _squared_logarithmic_error,
    "log_cosh": _log_cosh,
    "poisson": _poisson,
    "cosine_similarity": _cosine_similarity,
    "kl_divergence": _kl_divergence,
    "hinge": _hinge,
    "squared_hinge": _squared_hinge,
    "categorical_hinge": _categorical_hinge,
    "dice": _dice,
}
# Losses with options: each returns the loss of its options.
_WITH_OPTIONS: Mapping[str, Callable[[Any], Loss]] = {
    "binary_crossentropy": lambda options: _of_smoothed(_binary_crossentropy, options, of_classes=False),
    "binary_focal_crossentropy": lambda options: partial(_binary_focal_crossentropy, options),
    "categorical_crossentropy": lambda options: _of_smoothed(_categorical_crossentropy, options, of_classes=True),
    "categorical_focal_crossentropy": lambda options: partial(_categorical_focal_crossentropy, options),
    "categorical_generalized_cross_entropy": lambda options: partial(_generalized_crossentropy, options),
    "tversky": lambda options: partial(_tversky, options),
    "huber": lambda options: partial(_huber, options),
}


@dataclass(frozen=True)
class OfLogits:
    """A loss that can also be computed from logits.

    Attributes:
      loss: returns the loss of logits, of its options.
      activation: name of the function in `Arrays` that makes probabilities of them.
    """

    loss: Callable[[Any], Loss]
    activation: str


_OF_LOGITS: Mapping[str, OfLogits] = {
    "binary_crossentropy": OfLogits(
        lambda options: _of_smoothed(_sigmoid_crossentropy, options, of_classes=False), SIGMOID
    ),
    "binary_focal_crossentropy": OfLogits(lambda options: partial(_binary_focal_of_logits, options), SIGMOID),
    "categorical_crossentropy": OfLogits(
        lambda options: _of_smoothed(_softmax_crossentropy, options, of_classes=True), SOFTMAX
    ),
    "categorical_focal_crossentropy": OfLogits(
        lambda options: partial(_categorical_focal_of_logits, options), SOFTMAX
    ),
}
# Losses that take logits if the config says so.
WITH_LOGITS = tuple(_OF_LOGITS)
HUBER = "huber"
NAMES = (*_LOSSES, *_WITH_OPTIONS)
# Losses of outputs that are not probabilities.
_HINGES = ("hinge", "squared_hinge", "categorical_hinge")
# Losses with one number per example, whatever the dims of its target.
OF_EXAMPLES = ("dice", "tversky")
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
# Keras's losses that are not losses of numbers: what computes each of them here.
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "SparseCategoricalCrossentropy": (
        "compares class numbers with probabilities",
        "set task=classification, or task=positions for one class per position",
    ),
    "CTC": ("aligns labels with steps", "set engine=jax task=custom with a loss that calls ctc_loss"),
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


def check(name: str, task: str = "regression") -> None:
    """Checks the name of a loss.

    Args:
      name: the name.
      task: name of the task.

    Raises:
      ConfigError: it is none of `NAMES`; the error names the task or the spelling that is meant, if there is one.
    """
    if name in NAMES:
        return
    plain = without_case(name)
    for other, (problem, fix) in _ELSEWHERE.items():
        if plain == without_case(other):
            raise invalid(KEY, name, problem=f"{problem}, which task={task} can't", fix=fix)
    for known in NAMES:
        if plain == without_case(known) or SHORT.get(plain) == known:
            raise invalid(
                KEY, name, problem="losses are called by the names of Keras's functions", fix=f"set {KEY}={known}"
            )
    check_name(KEY, name, NAMES)


def without_case(name: str) -> str:
    """Returns a name as Keras's classes and functions share it."""
    return name.replace("_", "").lower()


def check_options(name: str, content: Mapping[str, Any] | None, own_keys: Sequence[str]) -> None:
    """Checks the options of a loss.

    Args:
      name: of `NAMES`.
      content: `task.loss_options`.
      own_keys: options that are keys of the task.

    Raises:
      ConfigError: an option is unknown or invalid, or is a key of the task.
    """
    for option in own_keys:
        if content and option in content:
            fix = f"set task.{option}={content[option]}"
            raise invalid(f"{OPTIONS_KEY}.{option}", content[option], problem="is a key of the task", fix=fix)
    values.check(options_of(name, content), OPTIONS_KEY)


def options_of(name: str, content: Mapping[str, Any] | None) -> Any:
    """Returns the options of a loss as its dataclass.

    Args:
      name: of `NAMES`.
      content: `task.loss_options`; None: the defaults.

    Raises:
      ConfigError: an option is unknown or of a wrong type.
    """
    kind = OPTIONS.get(name, NoOptions)
    if content and kind is NoOptions:
        raise invalid(
            OPTIONS_KEY,
            content,
            problem=f"{KEY}={name} has no options",
            fix=f"remove {OPTIONS_KEY}, or set another loss",
        )
    return build(kind, content or {}, OPTIONS_KEY)


def named(name: str, *, from_logits: bool = False, options: Mapping[str, Any] | None = None) -> Loss:
    """Returns a loss of `NAMES`.

    Args:
      name: Keras's.
      from_logits: the outputs are logits; only for a loss of `WITH_LOGITS`.
      options: of the loss, checked; None: the defaults.
    """
    if from_logits:
        return _OF_LOGITS[name].loss(options_of(name, options))
    if name in _WITH_OPTIONS:
        return _WITH_OPTIONS[name](options_of(name, options))
    return _LOSSES[name]


def check_chosen(name: str | None, content: Mapping[str, Any] | None, task: str) -> None:
    """Checks the loss of a task whose default is a cross-entropy, and its options.

    Args:
      name: `task.loss`; None: the cross-entropy.
      content: `task.loss_options`.
      task: name of the task.

    Raises:
      ConfigError: the loss is unknown, or one of its options.
    """
    if name is not None:
        check(name, task)
        check_options(name, content, own_keys=("label_smoothing",))
    elif content:
        fix = f"set {KEY}, such as {KEY}={WITH_LOGITS[1]}, or remove {OPTIONS_KEY}"
        raise invalid(OPTIONS_KEY, content, problem=f"needs {KEY}", fix=fix)


def chosen(name: str | None, options: Mapping[str, Any] | None, activation: str | None) -> Loss | None:
    """Returns the loss that a config chooses instead of the cross-entropy, or None; see `of_model`."""
    return None if name is None else of_model(name, options, activation)


def of_model(name: str, options: Mapping[str, Any] | None, activation: str | None) -> Loss:
    """Returns a loss of a model's outputs, of a task whose outputs are probabilities or their logits.

    Args:
      name: Keras's.
      options: of the loss, checked; None: the defaults.
      activation: `SIGMOID` or `SOFTMAX`, which makes probabilities of the model's logits; None: the outputs are
        probabilities. A hinge loss takes the outputs as they are.
    """
    if activation is None or name in _HINGES:
        return named(name, options=options)
    if name in _OF_LOGITS and _OF_LOGITS[name].activation == activation:
        return named(name, from_logits=True, options=options)
    loss = named(name, options=options)

    def of_probabilities(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
        return loss(ops, target, getattr(ops, activation)(output))

    return of_probabilities


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
