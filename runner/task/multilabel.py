"""Any number of labels per example (multi-label classification): sigmoid cross-entropy, F1, areas under curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import MultilabelOptions, TaskConfig
from runner.data.base import Array, DataSource, column
from runner.errors import invalid
from runner.host.late import late
from runner.task import keras_metrics, losses, thresholds
from runner.task.base import Cell, Evaluation, OutputSpec, Report, Table, Task, TaskData
from runner.task.checks import check_output
from runner.task.keras_metrics import KerasMetrics
from runner.task.metrics import MAXIMIZE
from runner.task.sigmoids import OfSigmoids
from runner.task.supervised import as_counts, columns, counted, roles
from runner.task.token_checks import tags_fix

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")


# Names of the sums of `Multilabel.totals` that have an entry per threshold.
_ABOVE = "above"
_POSITIVE_ABOVE = "positive_above"


def _own_metrics(options: MultilabelOptions) -> list[str]:
    areas = () if options.auc_thresholds is None else ("auc", "auc_pr", "auc_macro", "auc_pr_macro")
    own = ("f1_micro", "f1_macro", "exact_match", "accuracy", "precision", "recall", *areas)
    return [*own, *thresholds.names(options.thresholds)]


def directions(options: MultilabelOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    metrics = dict.fromkeys(_own_metrics(options), MAXIMIZE)
    return {**metrics, **keras_metrics.directions(options.metrics, keras_metrics.LABELS, _own_metrics(options))}


def step_metrics(options: MultilabelOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    del options
    return ("exact_match", "accuracy")


def check(options: MultilabelOptions) -> None:
    """Checks options without a dataset.

    Raises:
      ConfigError: a value is invalid.
    """
    thresholds.check_names(options.thresholds)
    losses.check_chosen(options.loss, options.loss_options)
    keras_metrics.requested(options.metrics, keras_metrics.LABELS, _own_metrics(options))


def make(config: TaskConfig, options: MultilabelOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return Multilabel(config, options, data)


class Multilabel(OfSigmoids):
    """Labels that are each 0 or 1, in one array (B, L) or in several columns of one number per example.

    Shapes: B examples, L labels.

    Attributes:
      label_names: in order.
    """

    def __init__(self, config: TaskConfig, options: MultilabelOptions, data: TaskData) -> None:
        """Settles the labels; see `runner.task.registry.make_task`."""
        super().__init__(roles(config, data.arrays), data.arrays, directions(options), from_logits=options.from_logits)
        self._options = options
        self.label_names = self._find_names()
        self.outputs = OutputSpec(len(self.label_names), self.label_names)
        self.step_metrics = step_metrics(options)
        activation = losses.SIGMOID if options.from_logits else None
        self._loss = losses.of_model(options.loss, options.loss_options, activation)
        self._keras_metrics = KerasMetrics(
            options.metrics,
            keras_metrics.LABELS,
            _own_metrics(options),
            len(self.label_names),
            has_example_weight=config.example_weight is not None,
        )
        # Logits are compared with the threshold's logit, which saves a sigmoid per output.
        self._threshold_logit = math.log(options.threshold / (1.0 - options.threshold))
        # The thresholds of the areas are first, then those of the config.
        of_area: list[float] = []
        if options.auc_thresholds is not None:
            of_area = thresholds.of_area(options.auc_thresholds)
        self._area_rows = slice(0, len(of_area))
        self._thresholds = [*of_area, *options.thresholds]
        self._logits_n = thresholds.as_logits(self._thresholds)
        if data.train is not None:
            self.check_split(data.train, "train")

    def _find_names(self) -> tuple[str, ...]:
        specs = [self.arrays[name] for name in self.target_names]
        if len(specs) > 1 and all(spec.shape in ((), (1,)) for spec in specs):
            return self.target_names
        spec = specs[0]
        if len(specs) == 1 and len(spec.shape) == 1:
            return tuple(spec.names) or tuple(str(index) for index in range(spec.shape[0]))
        if len(specs) == 1 and not spec.shape:
            fix = "set task=classification for 0 and 1, or task=regression"
            if np.dtype(spec.dtype).kind in "biu":
                fix = "set task=classification, which takes 0 and 1 as two classes"
            raise invalid(
                "task.target",
                self.target_names[0],
                problem="task=multilabel needs several labels per example, but this array has one number per example",
                fix=fix,
            )
        shapes = ", ".join(f"{name} {list(self.arrays[name].shape)}" for name in self.target_names)
        raise invalid(
            "task.target",
            list(self.target_names),
            problem="task=multilabel needs one array with a 0 or 1 per label, or several columns of one number each; "
            f"shapes are {shapes}",
            fix="name the columns, such as task.target=[first,second]",
        )

    def _labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, L)."""
        return columns(ops, batch, self.target_names)

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B,) of each example's losses, cross-entropies in nats, times its sample weight."""
        smoothing = self._options.label_smoothing
        label_bl = self._labels(ops, batch) * (1.0 - smoothing) + 0.5 * smoothing
        if self._loss is not None:
            terms = self._loss(ops, label_bl, outputs)
        else:
            terms = ops.sigmoid_cross_entropy(label_bl, self._as_logits(ops, outputs))
        return self._weighted(ops, losses.mean_by_example(ops, terms), batch)

    def _compared(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns three float32 arrays (B, L) of 1 or 0: the labels, the predictions, and where both agree."""
        label_bl = ops.greater(self._labels(ops, batch), 0.5)
        predicted_bl = ops.greater(self._as_logits(ops, outputs), self._threshold_logit)
        agree_bl = ops.equal(label_bl, predicted_bl)
        return ops.cast(label_bl, "float32"), ops.cast(predicted_bl, "float32"), ops.cast(agree_bl, "float32")

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns 1 for each example whose labels are all predicted correctly, else 0, and the fraction that are."""
        _, _, agree_bl = self._compared(ops, outputs, batch)
        return {"exact_match": ops.min(agree_bl, axis=-1), "accuracy": ops.mean(agree_bl, axis=-1)}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns counts per label (L,), of examples, and of examples whose labels are all predicted correctly.

        With thresholds also counts (L, N) of the predictions above each, and of the correct ones among them.
        """
        label_bl, predicted_bl, agree_bl = self._compared(ops, outputs, batch)
        exact_b = ops.min(agree_bl, axis=-1)
        counted_values = {
            "there": label_bl,
            "predicted": predicted_bl,
            "agree": agree_bl,
            "found": label_bl * predicted_bl,
            "exact": exact_b,
            "examples": ops.ones_like(exact_b),
        }
        if self._thresholds:
            logits_bl1 = ops.expand_dims(self._as_logits(ops, outputs), -1)
            is_above_bln = ops.cast(ops.greater(logits_bl1, self._logits_n), "float32")
            counted_values[_ABOVE] = is_above_bln
            counted_values[_POSITIVE_ABOVE] = is_above_bln * ops.expand_dims(label_bl, -1)
        totals = {name: counted(ops, batch, values, [0]) for name, values in counted_values.items()}
        return {**totals, **self._keras_metrics.totals(ops, lambda: self._of_keras(ops, outputs, batch))}

    def _counts(self, totals: Mapping[str, Array], label: int | None = None) -> thresholds.Counts:
        rows = slice(None) if label is None else slice(label, label + 1)
        true_positives = totals[_POSITIVE_ABOVE][rows].sum(0)
        false_positives = totals[_ABOVE][rows].sum(0) - true_positives
        positives = totals["there"][rows]
        negatives = float(totals["examples"]) * len(positives) - float(positives.sum())
        return thresholds.Counts(true_positives, false_positives, float(positives.sum()), negatives)

    def _areas(self, totals: Mapping[str, Array]) -> dict[str, float]:
        together = self._counts(totals).at(self._area_rows)
        of_labels = [self._counts(totals, label).at(self._area_rows) for label in range(len(self.label_names))]
        return {
            "auc": together.area_under_roc(),
            "auc_pr": together.area_under_precision_recall(),
            "auc_macro": float(np.mean([counts.area_under_roc() for counts in of_labels])),
            "auc_pr_macro": float(np.mean([counts.area_under_precision_recall() for counts in of_labels])),
        }

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns F1 over all labels (micro) and its mean over the labels (macro), exact matches, and accuracy.

        Precision, recall and areas are over all labels together, as Keras's; the areas' means over the labels are too.
        """
        positives = totals["there"]
        predicted = totals["predicted"]
        true_positives = totals["found"]
        examples = max(float(totals["examples"]), 1.0)
        metrics = {
            "f1_micro": float(_f1(true_positives.sum(), positives.sum(), predicted.sum())),
            "f1_macro": float(np.mean(_f1(true_positives, positives, predicted))),
            "exact_match": float(totals["exact"]) / examples,
            "accuracy": float(totals["agree"].sum()) / (examples * len(self.label_names)),
            "precision": float(thresholds.ratio(true_positives.sum(), predicted.sum())),
            "recall": float(thresholds.ratio(true_positives.sum(), positives.sum())),
        }
        if self._options.auc_thresholds is not None:
            metrics |= self._areas(totals)
        if self._options.thresholds:
            others = self._counts(totals).at(slice(self._area_rows.stop, None))
            precision = others.precision()
            recall = others.recall()
            for row, threshold in enumerate(self._options.thresholds):
                metrics[thresholds.named("precision", threshold)] = float(precision[row])
                metrics[thresholds.named("recall", threshold)] = float(recall[row])
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one logit per label."""
        check_output(shape, (len(self.label_names),), "one logit per label of the dataset")

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to 1."""
        for name in self.target_names:
            labels = column(source, name)
            if labels is None or (labels.min(initial=0) >= 0 and labels.max(initial=0) <= 1):
                continue
            low = labels.min()
            # Several integers per example that are no 0 and 1 are most likely classes of its tokens.
            are_tags = labels.ndim == 2 and labels.dtype.kind in "iu" and low >= 0
            fix = "store 0 and 1, or set task=regression"
            if are_tags:
                fix = f"store 0 and 1, or {tags_fix(name, int(labels.max(initial=0)) + 1)}"
            wrong = low if low < 0 else labels.max()
            raise invalid(
                "task.target",
                name,
                problem=f"needs a 0 or 1 per label, but the {split} split has {wrong:g}",
                fix=fix,
            )

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the labels, and a picture of their F1, precision and recall."""
        del source
        positives = as_counts(evaluation.totals["there"])
        predicted = as_counts(evaluation.totals["predicted"])
        true_positives = as_counts(evaluation.totals["found"])
        agree = as_counts(evaluation.totals["agree"])
        f1 = _f1(true_positives, positives, predicted)
        examples = max(evaluation.examples, 1)
        bars: list[tuple[str, float, float | None, float | None]] = []
        rows: list[tuple[Cell, ...]] = []
        for index, name in enumerate(self.label_names):
            precision = float(true_positives[index] / predicted[index]) if predicted[index] else None
            recall = float(true_positives[index] / positives[index]) if positives[index] else None
            label_f1 = float(f1[index])
            accuracy = float(agree[index] / examples)
            bars.append((name, label_f1, precision, recall))
            rows.append((name, label_f1, precision, recall, accuracy, int(positives[index]), int(predicted[index])))
        head = ("label", "f1", "precision", "recall", "accuracy", "examples", "predicted")
        files: dict[str, Callable[[Path], None]] = {
            "labels.png": partial(pictures.labels, rows=bars, counts=positives, split=split)
        }
        tables: dict[str, Table] = {"labels": (head, rows)}
        if self._options.auc_thresholds is not None:
            tables["areas under curves"] = self._area_table(evaluation.totals)
        return Report(files, tables)

    def _area_table(self, totals: Mapping[str, Array]) -> Table:
        """Returns the areas of each label; None if it has no examples with it, or none without."""
        rows: list[tuple[Cell, ...]] = []
        for index, name in enumerate(self.label_names):
            counts = self._counts(totals, index).at(self._area_rows)
            is_defined = counts.positives > 0 and counts.negatives > 0
            area = counts.area_under_roc() if is_defined else None
            area_pr = counts.area_under_precision_recall() if is_defined else None
            rows.append((name, area, area_pr))
        return ("label", "auc", "auc_pr"), rows


def _f1(true_positives: Array, positives: Array, predicted: Array) -> Array:
    """Returns 2 * true positives / (positives + predicted), 0 without any."""
    return np.asarray(2.0 * true_positives / np.maximum(positives + predicted, 1.0))
