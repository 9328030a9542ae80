# ruff: noqa: D102 - a task overrides what Task documents
"""Labels that are 0 or 1, with a sigmoid each: one of two classes per example, or any number of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import BinaryOptions, MultilabelOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource
from runner.errors import invalid
from runner.host.late import late
from runner.task import classes, keras_metrics, losses
from runner.task.base import Evaluation, OutputSpec, Report, Shapes, TaskData
from runner.task.keras_metrics import Compared
from runner.task.metrics import MAXIMIZE
from runner.task.supervised import (
    Supervised,
    as_counts,
    as_vector,
    check_output,
    class_table,
    columns,
    counted,
    f1,
    is_one_number,
    is_real,
    ratio,
    read_columns,
    shares,
)

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")

# Names of the sums of `OfSigmoids.totals`: positive, predicted, both, equal to the label; and of whole examples.
_POSITIVES = "there"
_PREDICTED = "predicted"
_FOUND = "found"
_AGREE = "agree"
_EXACT = "exact"
_EXAMPLES = "examples"


class OfSigmoids(Supervised):
    """A task of L labels per example that are each 0 or 1. The model returns (B, L): logits, or probabilities."""

    compares = keras_metrics.LABELS
    activation = losses.SIGMOID

    def __init__(self, config: TaskConfig, options: Any, data: TaskData) -> None:
        super().__init__(config, options, data)
        # Logits are compared with the threshold's logit: for large ones, a sigmoid in float32 is 1.
        self._threshold_logit = math.log(options.threshold / (1.0 - options.threshold))

    def _labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        return columns(ops, batch, self.target_names)

    def _as_logits(self, ops: Arrays, outputs: Tensor) -> Tensor:
        if self._options.from_logits:
            return outputs
        return losses.logits_of_sigmoid(ops, outputs)

    def _mean_terms(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B,) of each example's losses, cross-entropies in nats unless the config names another."""
        smoothing = self._options.label_smoothing
        label_bl = self._labels(ops, batch) * (1.0 - smoothing) + 0.5 * smoothing
        if self._loss is not None:
            terms = self._loss(ops, label_bl, outputs)
        else:
            terms = ops.sigmoid_cross_entropy(label_bl, self._as_logits(ops, outputs))
        return losses.mean_by_example(ops, terms)

    def _compared(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns three float32 arrays (B, L) of 1 or 0: the labels, the predictions, and where both agree."""
        label_bl = ops.greater(self._labels(ops, batch), 0.5)
        predicted_bl = ops.greater(self._as_logits(ops, outputs), self._threshold_logit)
        agree_bl = ops.equal(label_bl, predicted_bl)
        return ops.cast(label_bl, "float32"), ops.cast(predicted_bl, "float32"), ops.cast(agree_bl, "float32")

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns counts per label (L,), of examples, and of examples whose labels are all predicted correctly."""
        label_bl, predicted_bl, agree_bl = self._compared(ops, outputs, batch)
        exact_b = ops.min(agree_bl, axis=-1)
        values = {
            _POSITIVES: label_bl,
            _PREDICTED: predicted_bl,
            _AGREE: agree_bl,
            _FOUND: label_bl * predicted_bl,
            _EXACT: exact_b,
            _EXAMPLES: ops.ones_like(exact_b),
        }
        totals = {name: counted(ops, batch, value, [0]) for name, value in values.items()}
        return {**totals, **self._keras_metrics.totals(ops, lambda: self._of_keras(ops, outputs, batch))}

    def _of_keras(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        weight = ops.cast(is_real(ops, batch), "float32")
        return self._comparison(ops, outputs, batch, self._labels(ops, batch), weight)

    def check_split(self, source: DataSource, split: str) -> None:
        for name in self.target_names:
            # None if labels would have to be read example by example, as those of a user's own source.
            labels = source.column(name)
            if labels is None or (labels.min(initial=0) >= 0 and labels.max(initial=0) <= 1):
                continue
            wrong = labels.min()
            # False for NaN, which is wrong too.
            if wrong >= 0:
                wrong = labels.max()
            problem = f"needs a 0 or 1 per label, but the {split} split has {wrong:g}"
            fix = "store 0 and 1, or set task=classification for classes, task=regression for numbers"
            raise invalid("task.target", name, problem=problem, fix=fix)


class Binary(OfSigmoids):
    """Two classes: 0 and 1, false and true, or two named categories. The model returns one number (B, 1).

    Shapes: B examples.

    Attributes:
      class_names: of the negative and of the positive class.
    """

    own_metrics = dict.fromkeys(("accuracy", "f1", "precision", "recall"), MAXIMIZE)
    step_metrics = ("accuracy",)

    def __init__(self, config: TaskConfig, options: BinaryOptions, data: TaskData) -> None:
        super().__init__(config, options, data)
        target = self._check_target(data.arrays)
        # 0 and 1, unless the dataset has names for its two categories.
        names = data.arrays[target].names or ("0", "1")
        self.class_names = tuple(names)
        self.outputs = OutputSpec(1, self.class_names[1:])
        self._settle_keras(size=1)
        if data.train is not None:
            self.check_split(data.train, "train")
        self._class_weights, self.constants = classes.weights_of(
            options.class_weights, names, data, self._count_examples
        )

    def _check_target(self, arrays: Mapping[str, ArraySpec]) -> str:
        name = self._sole_target("task=binary needs one array", fix="name one array, or set task=multilabel")
        spec = arrays[name]
        if not is_one_number(spec) or np.dtype(spec.dtype).kind not in "biuf":
            problem = f"task=binary needs one 0 or 1 per example, but its dtype is {spec.dtype} and its shape "
            fix = "name another array, or set task=multilabel for several labels per example"
            raise invalid("task.target", name, problem=f"{problem}{list(spec.shape)}", fix=fix)
        if spec.names and len(spec.names) != 2:
            problem = f"task=binary needs two classes, but it has {len(spec.names)}"
            raise invalid("task.target", name, problem=problem, fix="set task=classification")
        return name

    def _count_examples(self, train: DataSource) -> Array:
        """Returns the number of examples (2,) of label 0 and of label 1."""
        labels = read_columns(train, self.target_names)[self.target_names[0]].astype(np.float64)
        return np.asarray([labels.size - labels.sum(), labels.sum()])

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), times its class weight and its sample weight."""
        loss_b = self._mean_terms(ops, outputs, batch)
        if self._class_weights is not None:
            label_b = as_vector(ops, self._labels(ops, batch))
            weight_0, weight_1 = self._class_weights
            loss_b = loss_b * (weight_0 + (weight_1 - weight_0) * label_b)
        return self._weighted(ops, loss_b, batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        _, _, agree_b1 = self._compared(ops, outputs, batch)
        return {"accuracy": ops.sum(agree_b1, axis=-1)}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics at the threshold, and those of Keras that the config asks for."""
        found = totals[_FOUND].sum()
        positives = totals[_POSITIVES].sum()
        predicted = totals[_PREDICTED].sum()
        metrics = {
            "accuracy": float(ratio(totals[_AGREE].sum(), totals[_EXAMPLES])),
            "f1": float(ratio(2.0 * found, predicted + positives)),
            "precision": float(ratio(found, predicted)),
            "recall": float(ratio(found, positives)),
        }
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shapes: Shapes) -> None:
        check_output(shapes, (1,), "one logit, that of the positive class")

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        del source
        totals = evaluation.totals
        hits = int(as_counts(totals[_FOUND])[0])
        positives = int(as_counts(totals[_POSITIVES])[0])
        false_alarms = int(as_counts(totals[_PREDICTED])[0]) - hits
        negatives = int(as_counts(totals[_EXAMPLES])) - positives
        matrix = np.asarray([[negatives - false_alarms, false_alarms], [positives - hits, hits]])
        draw = partial(pictures.confusion, matrix=matrix, class_names=self.class_names, split=split)
        table = class_table(self.class_names, np.diag(matrix), matrix.sum(1), matrix.sum(0))
        return Report({"confusion.png": draw}, {"classes": table})


class Multilabel(OfSigmoids):
    """Labels that are each 0 or 1, in one array (B, L) or in several columns of one number per example.

    Shapes: B examples, L labels.

    Attributes:
      label_names: in order.
    """

    own_metrics = dict.fromkeys(("f1_micro", "f1_macro", "exact_match", "accuracy", "precision", "recall"), MAXIMIZE)
    step_metrics = ("exact_match", "accuracy")

    def __init__(self, config: TaskConfig, options: MultilabelOptions, data: TaskData) -> None:
        super().__init__(config, options, data)
        self.label_names = self._find_names()
        self.outputs = OutputSpec(len(self.label_names), self.label_names)
        self._settle_keras(len(self.label_names))
        if data.train is not None:
            self.check_split(data.train, "train")

    def _find_names(self) -> tuple[str, ...]:
        specs = [self.arrays[name] for name in self.target_names]
        if len(specs) > 1 and all(map(is_one_number, specs)):
            return self.target_names
        spec = specs[0]
        if len(specs) == 1 and len(spec.shape) == 1:
            return tuple(spec.names) or tuple(map(str, range(spec.shape[0])))
        shapes = ", ".join(f"{name} {list(self.arrays[name].shape)}" for name in self.target_names)
        problem = "task=multilabel needs one array with a 0 or 1 per label, or several columns of one number each; "
        fix = "name the columns, such as task.target=[first,second], or set task=classification for one class"
        raise invalid("task.target", list(self.target_names), problem=f"{problem}shapes are {shapes}", fix=fix)

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B,) of each example's losses, times its sample weight."""
        return self._weighted(ops, self._mean_terms(ops, outputs, batch), batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns 1 for each example whose labels are all predicted correctly, else 0, and the fraction that are."""
        _, _, agree_bl = self._compared(ops, outputs, batch)
        return {"exact_match": ops.min(agree_bl, axis=-1), "accuracy": ops.mean(agree_bl, axis=-1)}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns F1 over all labels (micro) and its mean over the labels (macro), exact matches, and accuracy.

        Precision and recall are over all labels together, as Keras's.
        """
        positives = totals[_POSITIVES]
        predicted = totals[_PREDICTED]
        found = totals[_FOUND]
        examples = max(float(totals[_EXAMPLES]), 1.0)
        metrics = {
            "f1_micro": float(f1(found.sum(), positives.sum(), predicted.sum())),
            "f1_macro": float(np.mean(f1(found, positives, predicted))),
            "exact_match": float(totals[_EXACT]) / examples,
            "accuracy": float(totals[_AGREE].sum()) / (examples * len(self.label_names)),
            "precision": float(ratio(found.sum(), predicted.sum())),
            "recall": float(ratio(found.sum(), positives.sum())),
        }
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shapes: Shapes) -> None:
        check_output(shapes, (len(self.label_names),), "one logit per label of the dataset")

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        del source, split
        positives = as_counts(evaluation.totals[_POSITIVES])
        predicted = as_counts(evaluation.totals[_PREDICTED])
        found = as_counts(evaluation.totals[_FOUND])
        agree = as_counts(evaluation.totals[_AGREE])
        rows = zip(
            self.label_names,
            f1(found, positives, predicted).tolist(),
            shares(found, predicted),
            shares(found, positives),
            (agree / max(evaluation.examples, 1)).tolist(),
            positives.tolist(),
            predicted.tolist(),
            strict=True,
        )
        head = ("label", "f1", "precision", "recall", "accuracy", "examples", "predicted")
        return Report({}, {"labels": (head, list(rows))})
