"""Losses that a config chooses by Keras's names, and probabilities of models that end in a sigmoid or a softmax.

The engine `jax` has all losses, the others three of numbers.

https://keras.io/api/losses/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.arrays import Arrays, Tensor
from runner.config.values import check_name
from runner.errors import invalid

# (ops, target, output), both (B, ..., K) -> terms whose mean is an example's loss.
Loss = Callable[[Arrays, Tensor, Tensor], Tensor]

KEY = "task.loss"
OPTIONS_KEY = "task.loss_options"
# Keras's epsilon: probabilities are at least as far from 0 and from 1 before a logarithm.
_EPSILON = 1e-7
# Functions of `Arrays` that make probabilities of logits.
SIGMOID = "sigmoid"
SOFTMAX = "softmax"
HUBER = "huber"
# Losses of every engine.
OF_EVERY_ENGINE = ("mean_squared_error", "mean_absolute_error", HUBER)
# Name of a loss -> Keras's class.
_CLASSES = {
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "log_cosh": "LogCosh",
    "poisson": "Poisson",
    "cosine_similarity": "CosineSimilarity",
    "kl_divergence": "KLDivergence",
    "hinge": "Hinge",
    "squared_hinge": "SquaredHinge",
    "categorical_hinge": "CategoricalHinge",
    "dice": "Dice",
    "binary_crossentropy": "BinaryCrossentropy",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
    "categorical_generalized_cross_entropy": "CategoricalGeneralizedCrossEntropy",
    "tversky": "Tversky",
    HUBER: "Huber",
}
NAMES = tuple(_CLASSES)
# Losses that take logits if the config says so -> the function in `Arrays` that makes probabilities of them.
ACTIVATIONS = {
    "binary_crossentropy": SIGMOID,
    "binary_focal_crossentropy": SIGMOID,
    "categorical_crossentropy": SOFTMAX,
    "categorical_focal_crossentropy": SOFTMAX,
}
WITH_LOGITS = tuple(ACTIVATIONS)
# Losses of outputs that are not probabilities.
_HINGES = ("hinge", "squared_hinge", "categorical_hinge")
# Losses with one number per example, whatever the dims of its target.
OF_EXAMPLES = ("dice", "tversky")
# Losses whose targets are probabilities, or 0 and 1, and whose outputs are probabilities.
OF_PROBABILITIES = (*WITH_LOGITS, "categorical_generalized_cross_entropy", "kl_divergence", "dice", "tversky")


def check_options(content: Mapping[str, Any] | None, own_keys: Sequence[str] = ()) -> None:
    """Checks that no option of a loss, `task.loss_options`, is a key of the task. Raises ConfigError if one is."""
    for option in (*own_keys, "from_logits"):
        if content and option in content:
            fix = f"set task.{option}={content[option]}"
            raise invalid(f"{OPTIONS_KEY}.{option}", content[option], problem="is a key of the task", fix=fix)


def check_chosen(name: str | None, content: Mapping[str, Any] | None) -> None:
    """Checks the loss of a task whose default is a cross-entropy, and its options.

    Args:
      name: `task.loss`; None: the cross-entropy.
    """
    if name is not None:
        check_name(KEY, name, NAMES)
        check_options(content, own_keys=("label_smoothing",))
    elif content:
        fix = f"set {KEY}, such as {KEY}={WITH_LOGITS[1]}, or remove {OPTIONS_KEY}"
        raise invalid(OPTIONS_KEY, content, problem=f"needs {KEY}", fix=fix)


def named(name: str, *, from_logits: bool = False, options: Mapping[str, Any] | None = None) -> Loss:
    """Returns a loss of `NAMES`.

    Args:
      options: arguments of Keras's class; None: its defaults.
    """
    if name == "mean_squared_error" and not options:
        return lambda ops, target, output: ops.square(output - target)
    if name == "mean_absolute_error" and not options:
        return lambda ops, target, output: ops.abs(target - output)
    if name == HUBER and set(options or ()) <= {"delta"}:
        return _huber(**(options or {}))
    arguments = dict(options or {})
    if from_logits:
        arguments["from_logits"] = True

    def of_keras(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
        if name in OF_EXAMPLES:
            arguments["axis"] = tuple(range(1, len(target.shape)))
        try:
            loss = getattr(ops.keras.losses, _CLASSES[name])(reduction=None, **arguments)
        except (TypeError, ValueError) as error:
            problem = f"Keras rejects it: {str(error).strip().splitlines()[0]}"
            raise invalid(OPTIONS_KEY, dict(options or {}), problem=problem, fix="see keras.io/api/losses") from error
        if name == "categorical_generalized_cross_entropy":
            # Keras takes class numbers.
            target = ops.argmax(target, -1)
        # Its formula alone: padding and masks are the task's.
        return loss.call(target, output)

    return of_keras


def _huber(delta: float = 1.0) -> Loss:
    def huber(ops: Arrays, target: Tensor, output: Tensor) -> Tensor:
        error = ops.abs(output - target)
        quadratic = 0.5 * ops.square(error)
        linear = delta * error - 0.5 * delta * delta
        return ops.where(ops.less_equal(error, delta), quadratic, linear)

    return huber


def of_model(name: str | None, options: Mapping[str, Any] | None, activation: str | None) -> Loss | None:
    """Returns the loss that a config chooses instead of the cross-entropy, of a model's outputs; None: none.

    Args:
      options: arguments of Keras's class; None: its defaults.
      activation: `SIGMOID` or `SOFTMAX`, which makes probabilities of the model's logits; None: the outputs are
        probabilities. A hinge loss takes the outputs as they are.
    """
    if name is None:
        return None
    if activation is None or name in _HINGES:
        return named(name, options=options)
    if ACTIVATIONS.get(name) == activation:
        return named(name, from_logits=True, options=options)
    loss = named(name, options=options)
    return lambda ops, target, output: loss(ops, target, getattr(ops, activation)(output))


def mean_by_example(ops: Arrays, terms: Tensor) -> Tensor:
    """Returns the mean (B,) of each example's terms (B, ...)."""
    rank = len(terms.shape)
    if rank == 1:
        return terms
    return ops.mean(terms, axis=tuple(range(1, rank)))


def clipped(ops: Arrays, probabilities: Tensor) -> Tensor:
    """Returns probabilities that have a finite logarithm, as Keras clips them in its losses."""
    return ops.clip(probabilities, _EPSILON, 1.0 - _EPSILON)


def logits_of_sigmoid(ops: Arrays, probabilities: Tensor) -> Tensor:
    """Returns the numbers whose sigmoids are the probabilities (...)."""
    inside = clipped(ops, probabilities)
    return ops.log(inside) - ops.log(1.0 - inside)


def cross_entropy(ops: Arrays, target: Tensor, probabilities: Tensor) -> Tensor:
    """Returns the cross-entropy (...) in nats of outputs (..., C), scaled to a sum of 1 first, as in Keras."""
    share = probabilities / ops.sum(probabilities, axis=-1, keepdims=True)
    return -ops.sum(target * ops.log(clipped(ops, share)), axis=-1)
