"""Keras's metrics by the names of their classes, as a config lists them in `task.metrics`. They need engine=jax.

https://keras.io/api/metrics/
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.data.base import Array
from runner.errors import ConfigError, did_you_mean, in_one_line, invalid, listed
from runner.task.metrics import LOSS_NAME, MAXIMIZE, MINIMIZE

KEY = "task.metrics"
# Prefix of the names of the sums, among those of a task.
_PREFIX = "keras "
# A metric's name is a part of a logged name, such as `eval/auc`, and of a key of the config.
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
# Arguments of Keras's classes that the task sets itself.
_SET_BY_TASK = ("axis", "dtype", "from_logits", "num_classes", "num_labels", "sparse_y_pred", "sparse_y_true")

# What targets are: one class of several (one-hot), 0 or 1 per label, numbers, or numbers that are probabilities.
CLASSES = "classes"
LABELS = "labels"
NUMBERS = "numbers"
PROBABILITIES = "probabilities"
# Which of them fit a metric,
_OF_ERRORS = (CLASSES, LABELS, NUMBERS, PROBABILITIES)  # of whole vectors
_OF_NUMBERS = (NUMBERS, PROBABILITIES)  # of single numbers
_OF_FLAGS = (CLASSES, LABELS, PROBABILITIES)  # of outputs that are each positive or negative
_OF_CLASSES = (CLASSES, PROBABILITIES)  # of one class, or of a distribution over all
_OF_LABELS = (LABELS, PROBABILITIES)  # of independent labels
# Arguments of `update_state` that are the index of a class, not a vector.
_TARGET = ("y_true",)
_BOTH = ("y_true", "y_pred")


@dataclass(frozen=True)
class Kind:
    """What is known of a class of Keras's metrics without importing Keras.

    Attributes:
      name: Keras's name of an instance.
      direction: the better one.
      targets: kinds of targets that it fits.
      counts: it counts single outputs, and so has a weight for each.
      takes_flags: its targets must be 0 and 1, so they are `Compared.label`, if there are any.
      indices: the arguments that are the index of a class, not a vector.
      set_by_task: options: num_classes; from_logits, for a metric that can compare logits.
      per_class: by default, Keras returns a value per class, and only the largest output is positive.
      is_binary: its classes are 0 and 1 of each output, so its class ids are not the task's. It needs weights of the
        outputs' shape, as it doesn't broadcast them.
    """

    name: str
    direction: str
    targets: tuple[str, ...]
    counts: bool = False
    takes_flags: bool = False
    indices: tuple[str, ...] = ()
    set_by_task: tuple[str, ...] = ()
    per_class: bool = False
    is_binary: bool = False


# What is not here: R2Score, whose float32 sums about zero lose the variance of large numbers. task=regression has r2.
KINDS: Mapping[str, Kind] = {
    "Accuracy": Kind("accuracy", MAXIMIZE, _OF_NUMBERS),
    "BinaryAccuracy": Kind("binary_accuracy", MAXIMIZE, _OF_LABELS, takes_flags=True),
    "CategoricalAccuracy": Kind("categorical_accuracy", MAXIMIZE, _OF_CLASSES),
    "SparseCategoricalAccuracy": Kind("sparse_categorical_accuracy", MAXIMIZE, (CLASSES,), indices=_TARGET),
    "TopKCategoricalAccuracy": Kind("top_k_categorical_accuracy", MAXIMIZE, _OF_CLASSES),
    "SparseTopKCategoricalAccuracy": Kind("sparse_top_k_categorical_accuracy", MAXIMIZE, (CLASSES,), indices=_TARGET),
    "AUC": Kind("auc", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "Precision": Kind("precision", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "Recall": Kind("recall", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "TruePositives": Kind("true_positives", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "FalsePositives": Kind("false_positives", MINIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "TrueNegatives": Kind("true_negatives", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "FalseNegatives": Kind("false_negatives", MINIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "SensitivityAtSpecificity": Kind("sensitivity_at_specificity", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "SpecificityAtSensitivity": Kind("specificity_at_sensitivity", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "PrecisionAtRecall": Kind("precision_at_recall", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "RecallAtPrecision": Kind("recall_at_precision", MAXIMIZE, _OF_FLAGS, counts=True, takes_flags=True),
    "F1Score": Kind("f1_score", MAXIMIZE, _OF_FLAGS, takes_flags=True, per_class=True),
    "FBetaScore": Kind("fbeta_score", MAXIMIZE, _OF_FLAGS, takes_flags=True, per_class=True),
    "MeanIoU": Kind("mean_io_u", MAXIMIZE, (CLASSES,), takes_flags=True, indices=_BOTH, set_by_task=("num_classes",)),
    "OneHotMeanIoU": Kind("one_hot_mean_io_u", MAXIMIZE, _OF_CLASSES, takes_flags=True, set_by_task=("num_classes",)),
    "IoU": Kind("io_u", MAXIMIZE, (CLASSES,), takes_flags=True, indices=_BOTH, set_by_task=("num_classes",)),
    "OneHotIoU": Kind("one_hot_io_u", MAXIMIZE, _OF_CLASSES, takes_flags=True, set_by_task=("num_classes",)),
    "BinaryIoU": Kind("binary_io_u", MAXIMIZE, _OF_LABELS, counts=True, takes_flags=True, is_binary=True),
    "BinaryCrossentropy": Kind("binary_crossentropy", MINIMIZE, _OF_LABELS, set_by_task=("from_logits",)),
    "CategoricalCrossentropy": Kind("categorical_crossentropy", MINIMIZE, _OF_CLASSES, set_by_task=("from_logits",)),
    "SparseCategoricalCrossentropy": Kind(
        "sparse_categorical_crossentropy", MINIMIZE, (CLASSES,), indices=_TARGET, set_by_task=("from_logits",)
    ),
    "MeanSquaredError": Kind("mean_squared_error", MINIMIZE, _OF_ERRORS),
    "RootMeanSquaredError": Kind("root_mean_squared_error", MINIMIZE, _OF_ERRORS),
    "MeanAbsoluteError": Kind("mean_absolute_error", MINIMIZE, _OF_ERRORS),
    "MeanAbsolutePercentageError": Kind("mean_absolute_percentage_error", MINIMIZE, _OF_NUMBERS),
    "MeanSquaredLogarithmicError": Kind("mean_squared_logarithmic_error", MINIMIZE, _OF_NUMBERS),
    "LogCoshError": Kind("logcosh", MINIMIZE, _OF_NUMBERS),
    "Poisson": Kind("poisson", MINIMIZE, _OF_NUMBERS),
    "KLDivergence": Kind("kl_divergence", MINIMIZE, _OF_CLASSES),
    "CosineSimilarity": Kind("cosine_similarity", MAXIMIZE, _OF_ERRORS),
    "Hinge": Kind("hinge", MINIMIZE, _OF_NUMBERS),
    "SquaredHinge": Kind("squared_hinge", MINIMIZE, _OF_NUMBERS),
    "CategoricalHinge": Kind("categorical_hinge", MINIMIZE, _OF_CLASSES),
}


@dataclass(frozen=True)
class Compared:
    """What a metric compares, of one batch. K is the number of classes, labels or columns; `...` are positions.

    Attributes:
      target: float32 (B, ..., K).
      prediction: float32 (B, ..., K), probabilities if the target has them.
      weight: float32 (B, ...), 0 for padding and for what is not counted.
      label: float32 (B, ..., K) of 0 and 1; None: the target has them.
      logits: float32 (B, ..., K), whose probabilities the predictions are; None: the model returns no logits.
      example_weight: float32 (B,), `task.example_weight`; None: none.
    """

    target: Tensor
    prediction: Tensor
    weight: Tensor
    label: Tensor | None = None
    logits: Tensor | None = None
    example_weight: Tensor | None = None


@dataclass(frozen=True)
class Requested:
    """A metric of a config that evaluations add to a task's own: Keras's class, its arguments and its name in logs.

    `weighted`: examples count by `task.example_weight`.
    """

    kind: str
    options: Mapping[str, Any]
    name: str
    weighted: bool

    @property
    def key(self) -> str:
        """Dotted key of its options, for messages."""
        return f"{KEY}.{self.kind}"


def requested(setting: Any, targets: str, own: Collection[str]) -> list[Requested]:
    """Returns the metrics of a config.

    Args:
      setting: `task.metrics`: a list of names, or of mappings from a name to options; None: none.
      targets: what the task's targets are, such as CLASSES.
      own: names in logs of the metrics that the task always has.

    Raises:
      ConfigError: an unknown metric, one that does not fit the task, or two metrics of one name.
    """
    metrics: list[Requested] = []
    taken = {LOSS_NAME, *own}
    for entry in setting or ():
        if isinstance(entry, str):
            metric = _checked(entry, {}, targets)
        else:
            ((kind, content),) = entry.items()
            metric = _checked(kind, content or {}, targets)
        if metric.name in taken:
            fix = f"remove it, or give it a name, as in {KEY}=[{{{metric.kind}:{{name:my_{metric.name}}}}}]"
            raise invalid(KEY, metric.kind, problem=f"there is a metric {metric.name} already", fix=fix)
        taken.add(metric.name)
        metrics.append(metric)
    return metrics


def _checked(kind: str, content: Mapping[str, Any], targets: str) -> Requested:
    """Returns a metric of its name and options; see `requested`. Keras checks the options that it takes."""
    fitting = [name for name, known in KINDS.items() if targets in known.targets]
    if kind not in fitting:
        problem = "is not a Keras metric that runs have"
        if kind in KINDS:
            problem = "does not fit the targets of the task"
        fix = did_you_mean(kind, fitting, "see keras.io/api/metrics.")
        raise invalid(KEY, kind, problem=problem, fix=f"{fix} The task has {listed(fitting)}")
    for option in _SET_BY_TASK:
        if option in content:
            raise invalid(f"{KEY}.{kind}.{option}", content[option], problem="is set by the task", fix="remove it")
    options = dict(content)
    name = options.pop("name", KINDS[kind].name)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = "must consist of letters, digits and _, and begin with a letter"
        raise invalid(f"{KEY}.{kind}.name", name, problem=problem, fix=f"use a name such as my_{KINDS[kind].name}")
    weighted = options.pop("weighted", False)
    if not isinstance(weighted, bool):
        raise invalid(f"{KEY}.{kind}.weighted", weighted, problem="must be true or false", fix="set one of these")
    if KINDS[kind].per_class:
        options = {"average": "macro", **options}
    return Requested(kind, options, name, weighted)


def directions(setting: Any, targets: str, own: Collection[str]) -> dict[str, str]:
    """Returns the names in logs of a config's metrics, with the better direction of each; see `requested`."""
    return {metric.name: KINDS[metric.kind].direction for metric in requested(setting, targets, own)}


class KerasMetrics:
    """The Keras metrics of a task: their sums of a batch, and their values over a split.

    The variables of a Keras metric are sums over what it was updated with, so those of batches add up.
    """

    def __init__(
        self, setting: Any, targets: str, own: Collection[str], size: int, *, has_example_weight: bool
    ) -> None:
        self._requested = requested(setting, targets, own)
        self._size = size
        # Keras's metrics, made at the first batch.
        self._made: list[Any] | None = None
        for metric in self._requested:
            if metric.weighted and not has_example_weight:
                problem = "needs weights of the examples"
                fix = "set task.example_weight, or remove it"
                raise invalid(f"{metric.key}.weighted", True, problem=problem, fix=fix)
            if KINDS[metric.kind].per_class and metric.options.get("threshold") is None and size == 1:
                problem = "the largest output is always positive, as there is one column"
                raise invalid(f"{metric.key}.threshold", None, problem=problem, fix="set a threshold, such as 0.5")
            if not KINDS[metric.kind].is_binary:
                _check_class_ids(metric, size)

    def totals(self, ops: Arrays, compare: Callable[[], Compared]) -> dict[str, Tensor]:
        """Returns the sums of a batch. Raises ConfigError if Keras rejects an option."""
        if not self._requested:
            return {}
        compared = compare()
        if self._made is None:
            has_logits = compared.logits is not None
            self._made = [_instance(ops.keras, metric, self._size, has_logits) for metric in self._requested]
        totals = {}
        for metric, instance in zip(self._requested, self._made, strict=True):
            state = [np.zeros(variable.shape, variable.dtype) for variable in instance.variables]
            try:
                state = instance.stateless_update_state(state, **_arguments(ops, metric, compared))
            except (TypeError, ValueError) as error:
                raise _rejected(metric, error) from error
            for index, value in enumerate(state):
                totals[_sum_name(metric, index)] = ops.cast(value, "float32")
        return totals

    def kept(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums of `totals` among those of a task, which add up over batches."""
        return {name: value for name, value in totals.items() if name.startswith(_PREFIX)}

    def results(self, sums: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics over a split, of the sums over all batches."""
        results: dict[str, float] = {}
        for metric, instance in zip(self._requested, self._made or [], strict=True):
            state = []
            for index, variable in enumerate(instance.variables):
                state.append(np.asarray(sums[_sum_name(metric, index)], variable.dtype))
            results[metric.name] = float(np.asarray(instance.stateless_result(state), np.float64).reshape(()))
        return results


def _check_class_ids(metric: Requested, size: int) -> None:
    # An index that is out of range would be the last one in JAX.
    for option in ("class_id", "target_class_ids"):
        chosen = metric.options.get(option, ())
        indices = chosen
        if not isinstance(chosen, Sequence):
            indices = [chosen]
        for index in indices:
            if isinstance(index, int) and not 0 <= index < size:
                problem = f"the target has {size} classes, 0 to {size - 1}"
                raise invalid(f"{metric.key}.{option}", chosen, problem=problem, fix="name one of these")


def _sum_name(metric: Requested, index: int) -> str:
    return f"{_PREFIX}{metric.name}: {index}"


def _instance(keras: ModuleType, metric: Requested, size: int, has_logits: bool) -> Any:
    set_by_task = {"num_classes": size, "from_logits": has_logits}
    options = {name: set_by_task[name] for name in KINDS[metric.kind].set_by_task}
    zeros = np.zeros((1, size), np.float32)
    compared = Compared(zeros, zeros, np.zeros(1, np.float32), logits=zeros if has_logits else None)
    try:
        # Not in a program that is compiled, whose values could not be variables.
        with importlib.import_module("jax").ensure_compile_time_eval():
            # The default dtype of an IoU is int, which drops fractions of weights.
            instance = getattr(keras.metrics, metric.kind)(**metric.options, **options, dtype="float32")
            # Some classes make their variables at their first batch.
            instance.update_state(**_arguments(arrays.of(np), metric, compared))
            found = np.size(instance.result())
    except (AttributeError, TypeError, ValueError) as error:
        raise _rejected(metric, error) from error
    if found != 1:
        raise ConfigError(f"{metric.key}: has {found} values; set average=macro, or one threshold per metric")
    return instance


def _rejected(metric: Requested, error: Exception) -> ConfigError:
    first_line, _, _ = str(error).strip().partition("\n")
    problem = f"Keras rejects it: {in_one_line(first_line) or type(error).__name__}"
    return invalid(KEY, {metric.kind: dict(metric.options)}, problem=problem, fix="see keras.io/api/metrics")


def _arguments(ops: Arrays, metric: Requested, compared: Compared) -> dict[str, Tensor]:
    known = KINDS[metric.kind]
    target = compared.target
    if compared.label is not None and known.takes_flags:
        target = compared.label
    prediction = compared.prediction
    if compared.logits is not None and "from_logits" in known.set_by_task:
        prediction = compared.logits
    weight = compared.weight
    if compared.example_weight is not None and metric.weighted:
        positions = [1] * (len(weight.shape) - 1)
        weight = weight * ops.reshape(compared.example_weight, (-1, *positions))
    size = int(target.shape[-1])
    flat_weight = ops.reshape(weight, (-1,))
    # Selected first: the outputs for padding may be NaN, and NaN * 0 is NaN.
    is_counted = ops.greater(ops.expand_dims(flat_weight, -1), 0.0)
    flat_prediction = ops.reshape(prediction, (-1, size))
    flat_prediction = ops.where(is_counted, flat_prediction, ops.zeros_like(flat_prediction))
    if known.counts:
        flat_weight = ops.expand_dims(flat_weight, -1)
    if known.is_binary:
        flat_weight = flat_weight * ops.ones_like(flat_prediction)
    arguments = {"y_true": ops.reshape(target, (-1, size)), "y_pred": flat_prediction, "sample_weight": flat_weight}
    for name in known.indices:
        arguments[name] = ops.argmax(arguments[name], -1)
    return arguments
