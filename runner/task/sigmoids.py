"""What tasks share whose outputs are a sigmoid each, of labels that are 0 or 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import TaskConfig
from runner.data.base import Array, DataSource
from runner.errors import invalid
from runner.task import keras_metrics, losses, probabilities
from runner.task.base import TaskData
from runner.task.keras_metrics import Compared
from runner.task.supervised import Supervised, columns, counted, is_real

# Names of the sums of `OfSigmoids.totals`: positive, predicted, both, equal to the label; and of whole examples.
POSITIVES = "there"
PREDICTED = "predicted"
FOUND = "found"
AGREE = "agree"
EXACT = "exact"
EXAMPLES = "examples"


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
        return probabilities.logits_of_sigmoid(ops, outputs)

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
            POSITIVES: label_bl,
            PREDICTED: predicted_bl,
            AGREE: agree_bl,
            FOUND: label_bl * predicted_bl,
            EXACT: exact_b,
            EXAMPLES: ops.ones_like(exact_b),
        }
        totals = {name: counted(ops, batch, value, [0]) for name, value in values.items()}
        return {**totals, **self._keras_metrics.totals(ops, lambda: self._of_keras(ops, outputs, batch))}

    def _of_keras(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        has_logits = self._options.from_logits
        return Compared(
            target=self._labels(ops, batch),
            prediction=ops.sigmoid(outputs) if has_logits else outputs,
            weight=ops.cast(is_real(ops, batch), "float32"),
            logits=outputs if has_logits else None,
            example_weight=self._example_weights(ops, batch),
        )

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to 1."""
        for name in self.target_names:
            # None if labels would have to be read example by example, as those of a user's own source.
            labels = source.column(name)
            if labels is None or (labels.min(initial=0) >= 0 and labels.max(initial=0) <= 1):
                continue
            low = labels.min()
            # `not low >= 0`, because a NaN compares false with every number.
            wrong = low if not low >= 0 else labels.max()
            problem = f"needs a 0 or 1 per label, but the {split} split has {wrong:g}"
            fix = "store 0 and 1, or set task=classification for classes, task=regression for numbers"
            raise invalid("task.target", name, problem=problem, fix=fix)

    def predictions(self, ops: Arrays, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the logits, if the model returns them, and the probabilities, (B, L)."""
        if not self._options.from_logits:
            return {"probabilities": outputs}
        return {"logits": outputs, "probabilities": ops.sigmoid(outputs)}

    def warnings(self, outputs: Array) -> list[str]:
        """Returns a warning if the outputs look like probabilities and should be logits, or the reverse."""
        return probabilities.sigmoid_warnings(outputs, from_logits=self._options.from_logits)
