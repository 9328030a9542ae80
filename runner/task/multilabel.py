"""Any number of labels per example (multi-label classification): sigmoid cross-entropy, F1, precision, recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import MultilabelOptions, TaskConfig
from runner.data.base import Array, DataSource
from runner.errors import invalid
from runner.task.base import Cell, Evaluation, OutputSpec, Report, TaskData
from runner.task.metrics import MAXIMIZE
from runner.task.sigmoids import AGREE, EXACT, EXAMPLES, FOUND, POSITIVES, PREDICTED, OfSigmoids
from runner.task.supervised import as_counts, check_output, ratio


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
        if len(specs) > 1 and all(spec.shape in ((), (1,)) for spec in specs):
            return self.target_names
        spec = specs[0]
        if len(specs) == 1 and len(spec.shape) == 1:
            return tuple(spec.names) or tuple(str(index) for index in range(spec.shape[0]))
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
        positives = totals[POSITIVES]
        predicted = totals[PREDICTED]
        found = totals[FOUND]
        examples = max(float(totals[EXAMPLES]), 1.0)
        metrics = {
            "f1_micro": float(_f1(found.sum(), positives.sum(), predicted.sum())),
            "f1_macro": float(np.mean(_f1(found, positives, predicted))),
            "exact_match": float(totals[EXACT]) / examples,
            "accuracy": float(totals[AGREE].sum()) / (examples * len(self.label_names)),
            "precision": float(ratio(found.sum(), predicted.sum())),
            "recall": float(ratio(found.sum(), positives.sum())),
        }
        return {**metrics, **self._keras_metrics.results(totals)}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one logit per label."""
        check_output(shape, (len(self.label_names),), "one logit per label of the dataset")

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the labels."""
        del source, split
        positives = as_counts(evaluation.totals[POSITIVES])
        predicted = as_counts(evaluation.totals[PREDICTED])
        found = as_counts(evaluation.totals[FOUND])
        agree = as_counts(evaluation.totals[AGREE])
        f1 = _f1(found, positives, predicted)
        examples = max(evaluation.examples, 1)
        rows: list[tuple[Cell, ...]] = []
        for index, name in enumerate(self.label_names):
            precision = float(found[index] / predicted[index]) if predicted[index] else None
            recall = float(found[index] / positives[index]) if positives[index] else None
            label_f1 = float(f1[index])
            accuracy = float(agree[index] / examples)
            rows.append((name, label_f1, precision, recall, accuracy, int(positives[index]), int(predicted[index])))
        head = ("label", "f1", "precision", "recall", "accuracy", "examples", "predicted")
        return Report({}, {"labels": (head, rows)})


def _f1(found: Array, positives: Array, predicted: Array) -> Array:
    return ratio(2.0 * found, positives + predicted)
