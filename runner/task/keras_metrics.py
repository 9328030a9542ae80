"""Keras's metrics by the names of their classes, as a config lists them in `task.metrics`.

https://keras.io/api/metrics/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runner.arrays import Arrays, Tensor
from runner.config import schema_keras_metrics as schema
from runner.config import values
from runner.config.build import build, fields_of
from runner.config.schema_keras_metrics import OPTIONS, KerasMetric
from runner.data.base import Array
from runner.errors import ConfigError, did_you_mean, invalid, listed, shown
from runner.task import keras_sums, losses, thresholds
from runner.task.keras_sums import AtThresholds, ByClass, Compared, Mean, OfZeroAndOne, Sums, Terms
from runner.task.metrics import LOSS_NAME, MAXIMIZE, MINIMIZE
from runner.task.thresholds import Counts

KEY = "task.metrics"
# Prefix of the names of the sums, among those of a task.
_PREFIX = "keras "
# Keras's threshold of a metric of counts that has no other.
_THRESHOLD = 0.5

# What targets are, and so which metrics fit: one class of several, 0 or 1 per label, numbers, or numbers that are
# probabilities.
CLASSES = "classes"
LABELS = "labels"
NUMBERS = "numbers"
PROBABILITIES = "probabilities"
_TASKS = {
    CLASSES: "task=classification or task=positions",
    LABELS: "task=binary or task=multilabel",
    NUMBERS: "task=regression",
    PROBABILITIES: "task=regression with a loss of probabilities, such as task.loss=binary_crossentropy",
}
_OF_ERRORS = (CLASSES, LABELS, NUMBERS, PROBABILITIES)
_OF_NUMBERS = (NUMBERS, PROBABILITIES)
_OF_FLAGS = (CLASSES, LABELS, PROBABILITIES)
_OF_CLASSES = (CLASSES, PROBABILITIES)
_OF_LABELS = (LABELS, PROBABILITIES)

# Metrics of a task by their names there -> the Keras metrics that they equal.
Own = Mapping[str, Sequence[KerasMetric]]


@dataclass(frozen=True)
class Kind:
    """What is known of a class of Keras's metrics.

    Attributes:
      name: Keras's name of an instance.
      direction: the better one.
      targets: kinds of targets that it fits.
      make: returns its sums, of its options; None: only a task that has the metric itself computes it.
    """

    name: str
    direction: str
    targets: tuple[str, ...]
    make: Callable[[Any], Sums] | None


def _of_loss(name: str, sign: float = 1.0) -> Callable[[KerasMetric], Sums]:
    """Returns the mean of the terms of one of Keras's losses, times a sign, from logits where a task has them."""

    def make(options: KerasMetric) -> Sums:
        content = None
        if isinstance(options, schema.Smoothed):
            content = {"label_smoothing": options.label_smoothing}

        def terms(ops: Arrays, compared: Compared) -> Tensor:
            if compared.logits is not None and name in losses.WITH_LOGITS:
                loss_of_logits = losses.named(name, from_logits=True, options=content)
                return loss_of_logits(ops, compared.target, compared.logits)
            return sign * losses.named(name, options=content)(ops, compared.target, compared.prediction)

        return Mean(terms)

    return make


def _of_terms(terms: Terms) -> Callable[[KerasMetric], Sums]:
    return lambda _: Mean(terms)


def _root_of_squares(options: KerasMetric) -> Sums:
    """Returns the square root of the mean squared error."""
    del options

    def terms(ops: Arrays, compared: Compared) -> Tensor:
        return ops.square(compared.prediction - compared.target)

    return Mean(terms, finish=lambda mean: float(mean**0.5))


def _equal(ops: Arrays, compared: Compared) -> Tensor:
    return ops.cast(ops.equal(compared.prediction, compared.target), "float32")


def _is_largest(ops: Arrays, compared: Compared) -> Tensor:
    predicted = ops.argmax(compared.prediction, -1)
    return ops.cast(ops.equal(predicted, ops.argmax(compared.target, -1)), "float32")


def _binary_accuracy(options: schema.BinaryAccuracy) -> Sums:
    def terms(ops: Arrays, compared: Compared) -> Tensor:
        predicted = ops.cast(ops.greater(compared.prediction, options.threshold), "float32")
        return ops.cast(ops.equal(predicted, compared.flags), "float32")

    return Mean(terms)


def _top_k(options: schema.TopKCategoricalAccuracy) -> Sums:
    def terms(ops: Arrays, compared: Compared) -> Tensor:
        outputs = compared.prediction if compared.logits is None else compared.logits
        label = ops.one_hot(ops.argmax(compared.target, -1), int(outputs.shape[-1]))
        return ops.cast(keras_sums.is_in_top(ops, outputs, label, options.k), "float32")

    return Mean(terms)


def _at_thresholds(value: Callable[[Counts], Array]) -> Callable[[schema.Counted], Sums]:
    """Returns a metric with one value per threshold of its options."""

    def make(options: schema.Counted) -> Sums:
        top_k = options.top_k if isinstance(options, schema.OfLargest) else None
        return AtThresholds(
            # Without thresholds, every one of the largest outputs is positive.
            [-math.inf] if options.thresholds is None else options.thresholds,
            lambda counts: list(value(counts)),
            options.class_id,
            top_k=top_k,
        )

    return make


def _best(
    value: Callable[[Counts], Array], limited: Callable[[Counts], Array], limit: str
) -> Callable[[schema.Best], Sums]:
    """Returns a metric whose value is the best where another reaches the limit that an option names."""

    def make(options: schema.Best) -> Sums:
        def finish(counts: Counts) -> list[float]:
            return [keras_sums.largest_where(value(counts), limited(counts), getattr(options, limit))]

        return AtThresholds(keras_sums.evenly_spaced(options.num_thresholds), finish, options.class_id)

    return make


def _auc(options: schema.AUC) -> Sums:
    if options.thresholds is None:
        limits = thresholds.of_area(options.num_thresholds)
    else:
        limits = [-math.inf, *sorted(options.thresholds), math.inf]
    return AtThresholds(
        limits,
        lambda counts: [counts.area(options.curve, options.summation_method)],
        averages=options.multi_label,
        label_weights=options.label_weights,
    )


def _f_score(options: schema.F1Score) -> Sums:
    beta = options.beta if isinstance(options, schema.FBetaScore) else 1.0
    return ByClass(partial(keras_sums.f_beta, options.average, beta), options.threshold)


def _mean_iou(options: schema.MeanIoU) -> Sums:
    del options
    return ByClass(keras_sums.mean_iou)


def _iou(options: schema.IoU) -> Sums:
    chosen = options.target_class_ids

    def finish(right: Array, labels: Array, predicted: Array) -> float:
        return keras_sums.mean_iou(right[chosen], labels[chosen], predicted[chosen])

    return ByClass(finish)


_RECALL = Counts.recall
_PRECISION = Counts.precision

KINDS: Mapping[str, Kind] = {
    "Accuracy": Kind("accuracy", MAXIMIZE, _OF_NUMBERS, _of_terms(_equal)),
    "BinaryAccuracy": Kind("binary_accuracy", MAXIMIZE, _OF_LABELS, _binary_accuracy),
    "CategoricalAccuracy": Kind("categorical_accuracy", MAXIMIZE, _OF_CLASSES, _of_terms(_is_largest)),
    "SparseCategoricalAccuracy": Kind("sparse_categorical_accuracy", MAXIMIZE, (CLASSES,), _of_terms(_is_largest)),
    "TopKCategoricalAccuracy": Kind("top_k_categorical_accuracy", MAXIMIZE, _OF_CLASSES, _top_k),
    "SparseTopKCategoricalAccuracy": Kind("sparse_top_k_categorical_accuracy", MAXIMIZE, (CLASSES,), _top_k),
    "AUC": Kind("auc", MAXIMIZE, _OF_FLAGS, _auc),
    "Precision": Kind("precision", MAXIMIZE, _OF_FLAGS, _at_thresholds(_PRECISION)),
    "Recall": Kind("recall", MAXIMIZE, _OF_FLAGS, _at_thresholds(_RECALL)),
    "TruePositives": Kind("true_positives", MAXIMIZE, _OF_FLAGS, _at_thresholds(lambda of: of.true_positives)),
    "FalsePositives": Kind("false_positives", MINIMIZE, _OF_FLAGS, _at_thresholds(lambda of: of.false_positives)),
    "TrueNegatives": Kind(
        "true_negatives", MAXIMIZE, _OF_FLAGS, _at_thresholds(lambda of: of.negatives - of.false_positives)
    ),
    "FalseNegatives": Kind(
        "false_negatives", MINIMIZE, _OF_FLAGS, _at_thresholds(lambda of: of.positives - of.true_positives)
    ),
    "SensitivityAtSpecificity": Kind(
        "sensitivity_at_specificity", MAXIMIZE, _OF_FLAGS, _best(_RECALL, keras_sums.specificity, "specificity")
    ),
    "SpecificityAtSensitivity": Kind(
        "specificity_at_sensitivity", MAXIMIZE, _OF_FLAGS, _best(keras_sums.specificity, _RECALL, "sensitivity")
    ),
    "PrecisionAtRecall": Kind("precision_at_recall", MAXIMIZE, _OF_FLAGS, _best(_PRECISION, _RECALL, "recall")),
    "RecallAtPrecision": Kind("recall_at_precision", MAXIMIZE, _OF_FLAGS, _best(_RECALL, _PRECISION, "precision")),
    "F1Score": Kind("f1_score", MAXIMIZE, _OF_FLAGS, _f_score),
    "FBetaScore": Kind("fbeta_score", MAXIMIZE, _OF_FLAGS, _f_score),
    "MeanIoU": Kind("mean_io_u", MAXIMIZE, (CLASSES,), _mean_iou),
    "OneHotMeanIoU": Kind("one_hot_mean_io_u", MAXIMIZE, _OF_CLASSES, _mean_iou),
    "IoU": Kind("io_u", MAXIMIZE, (CLASSES,), _iou),
    "OneHotIoU": Kind("one_hot_io_u", MAXIMIZE, _OF_CLASSES, _iou),
    "BinaryIoU": Kind(
        "binary_io_u",
        MAXIMIZE,
        _OF_LABELS,
        lambda options: OfZeroAndOne(options.threshold, options.target_class_ids),
    ),
    "BinaryCrossentropy": Kind("binary_crossentropy", MINIMIZE, _OF_LABELS, _of_loss("binary_crossentropy")),
    "CategoricalCrossentropy": Kind(
        "categorical_crossentropy", MINIMIZE, _OF_CLASSES, _of_loss("categorical_crossentropy")
    ),
    "SparseCategoricalCrossentropy": Kind(
        "sparse_categorical_crossentropy", MINIMIZE, (CLASSES,), _of_loss("categorical_crossentropy")
    ),
    "MeanSquaredError": Kind("mean_squared_error", MINIMIZE, _OF_ERRORS, _of_loss("mean_squared_error")),
    "RootMeanSquaredError": Kind("root_mean_squared_error", MINIMIZE, _OF_ERRORS, _root_of_squares),
    "MeanAbsoluteError": Kind("mean_absolute_error", MINIMIZE, _OF_ERRORS, _of_loss("mean_absolute_error")),
    "MeanAbsolutePercentageError": Kind(
        "mean_absolute_percentage_error", MINIMIZE, _OF_NUMBERS, _of_loss("mean_absolute_percentage_error")
    ),
    "MeanSquaredLogarithmicError": Kind(
        "mean_squared_logarithmic_error", MINIMIZE, _OF_NUMBERS, _of_loss("mean_squared_logarithmic_error")
    ),
    "LogCoshError": Kind("logcosh", MINIMIZE, _OF_NUMBERS, _of_loss("log_cosh")),
    "Poisson": Kind("poisson", MINIMIZE, _OF_NUMBERS, _of_loss("poisson")),
    "KLDivergence": Kind("kl_divergence", MINIMIZE, _OF_ERRORS, _of_loss("kl_divergence")),
    "CosineSimilarity": Kind("cosine_similarity", MAXIMIZE, _OF_ERRORS, _of_loss("cosine_similarity", -1.0)),
    "Hinge": Kind("hinge", MINIMIZE, _OF_NUMBERS, _of_loss("hinge")),
    "SquaredHinge": Kind("squared_hinge", MINIMIZE, _OF_NUMBERS, _of_loss("squared_hinge")),
    "CategoricalHinge": Kind("categorical_hinge", MINIMIZE, _OF_NUMBERS, _of_loss("categorical_hinge")),
    "R2Score": Kind("r2_score", MAXIMIZE, _OF_NUMBERS, None),
}


@dataclass(frozen=True)
class Requested:
    """A metric of a config that evaluations add to a task's own.

    Attributes:
      kind: name of Keras's class.
      options: its options.
      names: names in logs; several for several thresholds.
      own: name of the task's own metric that is the same, whose value it has; None: there is none.
    """

    kind: str
    options: KerasMetric
    names: tuple[str, ...]
    own: str | None

    @property
    def key(self) -> str:
        """Dotted key of its options, for messages."""
        return f"{KEY}.{self.kind}"


def requested(setting: Any, targets: str, own: Own) -> list[Requested]:
    """Returns the metrics of a config, without those that the task logs anyway under the same name.

    Args:
      setting: `task.metrics`: a list of names, or of mappings from a name to options, or one such mapping; None: none.
      targets: kind of the task's targets.
      own: all metrics of the task itself.

    Raises:
      ConfigError: an unknown metric or option, a metric that does not fit the task, or two metrics of one name.
    """
    metrics: list[Requested] = []
    taken: dict[str, str] = {}
    for kind, content in _listed(setting):
        metric = _checked(kind, content, targets, own)
        if _unnamed(metric.options) in own.get(metric.names[0], ()):
            continue
        for name in metric.names:
            _check_free(metric, name, content, own, taken)
            taken[name] = kind
        metrics.append(metric)
    return metrics


def _listed(setting: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the names of the classes and their options; the form of the setting is checked."""
    if setting is None:
        return []
    if isinstance(setting, Mapping):
        return [(str(name), options or {}) for name, options in setting.items()]
    metrics: list[tuple[str, Mapping[str, Any]]] = []
    for metric in setting:
        if isinstance(metric, Mapping):
            ((name, options),) = metric.items()
            metrics.append((str(name), options or {}))
        else:
            metrics.append((metric, {}))
    return metrics


def _checked(kind: str, content: Mapping[str, Any], targets: str, own: Own) -> Requested:
    """Returns a metric of its name and options; see `requested`."""
    if kind in own:
        raise invalid(KEY, kind, problem="is a metric of the task already", fix="remove it")
    fitting = [name for name, known in KINDS.items() if targets in known.targets]
    if kind not in KINDS:
        raise invalid(
            KEY,
            kind,
            problem="is not a Keras metric",
            fix=f"{_spelling(kind)} The task has {listed(fitting)}",
        )
    if issubclass(OPTIONS[kind], schema.Counted) and isinstance(content.get("thresholds"), int | float):
        # One number, as Keras takes it too.
        content = {**content, "thresholds": [content["thresholds"]]}
    for option, reason in schema.LEFT_OUT.items():
        if option in content and option not in fields_of(OPTIONS[kind]):
            raise invalid(f"{KEY}.{kind}.{option}", content[option], problem=reason, fix="remove it")
    options = build(OPTIONS[kind], content, f"{KEY}.{kind}")
    values.check(options, f"{KEY}.{kind}")
    if isinstance(options, schema.Counted) and options.thresholds is None and not _has_top_k(options):
        options = replace(options, thresholds=[_THRESHOLD])
    same = _same(options, own)
    if same is None:
        _check_fits(kind, options, targets, own)
    if targets == LABELS and _is_of_largest(options):
        problem = "the largest output alone would be positive, but the outputs are labels of their own"
        raise _needs_threshold(kind, problem)
    name = options.name or KINDS[kind].name
    names: tuple[str, ...] = (name,)
    if isinstance(options, schema.Counted) and options.thresholds is not None and len(options.thresholds) > 1:
        names = tuple(thresholds.named(name, threshold) for threshold in options.thresholds)
    return Requested(kind, options, names, same)


def _check_fits(kind: str, options: KerasMetric, targets: str, own: Own) -> None:
    """Checks that a metric that the task doesn't have itself can be computed of its targets."""
    known = KINDS[kind]
    if targets in known.targets and known.make is not None:
        return
    unweighted = _same(replace(options, weighted=False), own)
    if unweighted is None:
        fitting = [name for name, other in KINDS.items() if targets in other.targets]
        raise invalid(KEY, kind, problem=f"is for {_tasks(kind)}", fix=f"use one of {listed(fitting)}")
    others = [type(other).__name__ for other in own[unweighted] if targets in KINDS[type(other).__name__].targets]
    fix = f"use {others[0]}" if others and others[0] != kind else "remove it"
    raise invalid(f"{KEY}.{kind}.weighted", True, problem=f"{kind} can't be weighted", fix=fix)


def _is_of_largest(options: KerasMetric) -> bool:
    """Returns whether a metric takes the largest output alone as positive."""
    return isinstance(options, schema.F1Score) and options.threshold is None


def _has_top_k(options: KerasMetric) -> bool:
    """Returns whether only the largest outputs can be positive."""
    return isinstance(options, schema.OfLargest) and options.top_k is not None


def _needs_threshold(kind: str, problem: str) -> ConfigError:
    """Returns the error of a metric of the largest output alone, of outputs that don't exclude each other."""
    return invalid(f"{KEY}.{kind}.threshold", None, problem=problem, fix=f"set {KEY}.{kind}.threshold=0.5")


def _spelling(kind: str) -> str:
    """Returns the fix for an unknown name: the class that has it in another spelling, or the nearest one."""
    plain = losses.without_case(losses.SHORT.get(kind, kind))
    for known in KINDS:
        if losses.without_case(known) == plain:
            return f"did you mean {known}?"
    return did_you_mean(kind, KINDS, "use the name of Keras's class.")


def _tasks(kind: str) -> str:
    """Returns the tasks that a metric fits, in words."""
    targets = list(KINDS[kind].targets)
    if NUMBERS in targets:
        # Any regression is one with a loss of probabilities too.
        targets.remove(PROBABILITIES)
    return " or ".join(_TASKS[target] for target in targets)


def _same(options: KerasMetric, own: Own) -> str | None:
    """Returns the name of the task's own metric that a metric is the same as, or None."""
    for name, metrics in own.items():
        if _unnamed(options) in metrics:
            return name
    return None


def _unnamed(options: KerasMetric) -> KerasMetric:
    """Returns the options by which two metrics are compared: all but the name."""
    return replace(options, name=None)


def _check_free(metric: Requested, name: str, content: Mapping[str, Any], own: Own, taken: Mapping[str, str]) -> None:
    """Checks that a name is that of no other metric; `content` is the metric's options as the config has them."""
    renamed = {**content, "name": f"my_{KINDS[metric.kind].name}"}
    example = f"give one a name, as in {KEY}={shown([{metric.kind: renamed}])}"
    if name in own and metric.own is not None:
        problem = f"{name} is another metric of the task, which logs this one as {metric.own}"
        fix = f"remove it and use eval/{metric.own}, or {example}"
    elif _is_at_one_threshold(metric, name, own):
        problem = f"the task logs {name} already"
        fix = f"remove the threshold from task.thresholds or from {KEY}"
    elif name in own or name == LOSS_NAME:
        problem = f"the task has a metric {name} of its own, with other options"
        fix = example
    elif name in taken:
        problem = f"two metrics are called {name}"
        fix = example
    else:
        return
    if metric.options.name is not None:
        raise invalid(f"{metric.key}.name", metric.options.name, problem=problem, fix=fix)
    entry = {metric.kind: content} if content else metric.kind
    raise invalid(KEY, [entry], problem=problem, fix=fix)


def _is_at_one_threshold(metric: Requested, name: str, own: Own) -> bool:
    """Returns whether the task logs a metric of several thresholds at one of these, under the same name."""
    options = metric.options
    if name not in own or not isinstance(options, schema.Counted) or options.thresholds is None:
        return False
    threshold = options.thresholds[metric.names.index(name)]
    return replace(options, name=None, thresholds=[threshold]) in own[name]


def directions(setting: Any, targets: str, own: Own) -> dict[str, str]:
    """Returns the names in logs of a config's metrics, with the better direction of each; see `requested`."""
    better: dict[str, str] = {}
    for metric in requested(setting, targets, own):
        better |= dict.fromkeys(metric.names, KINDS[metric.kind].direction)
    return better


class KerasMetrics:
    """The Keras metrics of a task: their sums of a batch, and their values over a split."""

    def __init__(self, setting: Any, targets: str, own: Own, size: int, *, has_example_weight: bool) -> None:
        """Makes the metrics of a config.

        Args:
          setting: `task.metrics`.
          targets: kind of the task's targets.
          own: all metrics of the task itself.
          size: number of classes, labels or columns.
          has_example_weight: whether the config has `task.example_weight`.

        Raises:
          ConfigError: a metric is of a class that the target does not have, or weighted without weights.
        """
        self._requested = requested(setting, targets, own)
        self._sums: dict[str, Sums] = {}
        for metric in self._requested:
            _check_size(metric, size)
            if metric.options.weighted and not has_example_weight:
                raise invalid(
                    f"{metric.key}.weighted",
                    True,
                    problem="needs weights of the examples",
                    fix="set task.example_weight, or remove it",
                )
            make = KINDS[metric.kind].make
            if metric.own is None and make is not None:
                self._sums[metric.names[0]] = make(metric.options)

    def totals(self, ops: Arrays, compare: Callable[[], Compared]) -> dict[str, Tensor]:
        """Returns the sums of a batch.

        Args:
          ops: the engine's.
          compare: returns what is compared; not called if nothing is.
        """
        if not self._sums:
            return {}
        compared = compare()
        totals = {}
        for metric in self._requested:
            first = metric.names[0]
            if first not in self._sums:
                continue
            ignored = metric.options.ignore_class if isinstance(metric.options, schema.Ignoring) else None
            weight = compared.weights(ops, by_example_weight=metric.options.weighted, ignore_class=ignored)
            for name, value in self._sums[first].totals(ops, compared, weight).items():
                totals[_sum_name(first, name)] = value
        return totals

    def kept(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums of `totals` among those of a task, which add up over batches."""
        return {name: value for name, value in totals.items() if name.startswith(_PREFIX)}

    def results(self, sums: Mapping[str, Array], own: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics over a split.

        Args:
          sums: over all batches.
          own: the values of the task's own metrics.
        """
        results = {}
        for metric in self._requested:
            first = metric.names[0]
            if metric.own is not None:
                results[first] = own[metric.own]
                continue
            prefix = _sum_name(first, "")
            own_sums = {name.removeprefix(prefix): value for name, value in sums.items() if name.startswith(prefix)}
            results |= dict(zip(metric.names, self._sums[first].results(own_sums), strict=True))
        return results


def _sum_name(metric: str, name: str) -> str:
    return f"{_PREFIX}{metric}: {name}"


def _check_size(metric: Requested, size: int) -> None:
    """Checks that the target has the classes that a metric's options name, or several if it needs them."""
    if size == 1 and _is_of_largest(metric.options):
        raise _needs_threshold(metric.kind, "the largest output is always positive, as the target has one column")
    _check_labels(metric, size)
    for option in ("class_id", "target_class_ids", "ignore_class"):
        chosen = getattr(metric.options, option, None)
        if chosen is None or isinstance(metric.options, schema.BinaryIoU):
            continue
        largest = max(chosen) if isinstance(chosen, list) else chosen
        if largest >= size:
            fix = "name one of these"
            if option == "ignore_class":
                fix = f"name one of these; task=positions leaves out other numbers by task.ignore_index={chosen}"
            raise invalid(
                f"{metric.key}.{option}", chosen, problem=f"the target has {size} classes, 0 to {size - 1}", fix=fix
            )


def _check_labels(metric: Requested, size: int) -> None:
    """Checks that the options fit the number of classes, labels or columns of the target."""
    options = metric.options
    if isinstance(options, schema.OfLargest) and options.top_k is not None and options.top_k > size:
        raise invalid(
            f"{metric.key}.top_k",
            options.top_k,
            problem=f"the target has {size} class{'es' if size != 1 else ''}",
            fix=f"set at most {size}, or remove it",
        )
    weights = options.label_weights if isinstance(options, schema.AUC) else None
    if weights is not None and len(weights) != size:
        raise invalid(
            f"{metric.key}.label_weights",
            weights,
            problem=f"needs one weight per class or label of the target, {size}",
            fix="list as many, or remove it",
        )
