"""Any number of labels an example: sigmoid cross-entropy on logits, F1, a table by label."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.config.schema_task import MultilabelOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource, column
from runner.errors import invalid
from runner.host.late import late
from runner.task.base import Evaluation, OutputSpec, Report, Tensor
from runner.task.checks import check_output, not_logits
from runner.task.metrics import MAXIMIZE
from runner.task.namespace import Namespace
from runner.task.supervised import Supervised, counted, roles
from runner.task.token_checks import tags_mend

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")


def directions(options: MultilabelOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation beside the loss, each with its better direction."""
    del options
    return {"f1_micro": MAXIMIZE, "f1_macro": MAXIMIZE, "exact_match": MAXIMIZE, "accuracy": MAXIMIZE}


def of_steps(options: MultilabelOptions) -> tuple[str, ...]:
    """Returns the metrics of a training step beside the loss."""
    del options
    return ("exact_match", "accuracy")


def check(options: MultilabelOptions) -> None:
    """Checks options, without a dataset.

    Raises:
      ConfigError: a value that can't work.
    """
    del options  # The schema has checked each of them, and none depends on another.


class Multilabel(Supervised):
    """Labels that are each there or not, of one array (B, L), or of several columns of one number an example.

    Shapes: B examples, L labels.

    Attributes:
      label_names: in order.
    """

    def __init__(
        self,
        config: TaskConfig,
        options: MultilabelOptions,
        arrays: Mapping[str, ArraySpec],
        train: DataSource | None,
        constants: Mapping[str, Sequence[float]],
    ) -> None:
        """Takes what `runner.task.registry.make_task` does, with the options typed."""
        del constants
        super().__init__(roles(config, arrays), arrays, directions(options))
        self._options = options
        self.label_names = self._names()
        self.outputs = OutputSpec(len(self.label_names), self.label_names)
        self.step_metrics = of_steps(options)
        self._above = math.log(options.threshold / (1.0 - options.threshold))  # the threshold's logit
        if train is not None:
            self.check_split(train, "train")

    def _names(self) -> tuple[str, ...]:
        specs = [self.arrays[name] for name in self.target_names]
        if len(specs) > 1 and all(spec.shape in ((), (1,)) for spec in specs):
            return self.target_names
        if len(specs) == 1 and len(specs[0].shape) == 1:
            return tuple(specs[0].names) or tuple(map(str, range(specs[0].shape[0])))
        if len(specs) == 1 and not specs[0].shape:
            whole = np.dtype(specs[0].dtype).kind in "biu"
            raise invalid(
                "task.target",
                self.target_names[0],
                problem="task=multilabel needs several labels per example, and this array has one number per example",
                fix="set task=classification, which takes 0 and 1 as two classes"
                if whole
                else "store 0 and 1 as integers and set task=classification, or set task=regression",
            )
        shapes = ", ".join(f"{name} {list(self.arrays[name].shape)}" for name in self.target_names)
        raise invalid(
            "task.target",
            list(self.target_names),
            problem="task=multilabel needs one array with a 0 or 1 per label, or several columns of one number each; "
            f"shapes are {shapes}",
            fix="name the columns, as task.target=[first,second]",
        )

    def _labels(self, ops: Namespace, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, L)."""
        return columns(ops, batch, self.target_names)

    def loss(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B,) of each example's cross-entropies, in nats, times its weight."""
        smoothing = self._options.label_smoothing
        label_bl = self._labels(ops, batch) * (1.0 - smoothing) + 0.5 * smoothing
        return self._weighted(ops, ops.mean(ops.sigmoid_cross_entropy(label_bl, outputs), axis=-1), batch)

    def _compared(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns which labels are there, which are predicted, and which of both agree; 1 or 0, (B, L)."""
        label_bl = ops.greater(self._labels(ops, batch), 0.5)
        predicted_bl = ops.greater(outputs, self._above)
        found = (label_bl, predicted_bl, ops.equal(label_bl, predicted_bl))
        there, predicted, agree = (ops.cast(each, "float32") for each in found)
        return there, predicted, agree

    def metrics(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns whether all labels of an example are right, and the share of them that are."""
        *_, agree_bl = self._compared(ops, outputs, batch)
        return {"exact_match": ops.min(agree_bl, axis=-1), "accuracy": ops.mean(agree_bl, axis=-1)}

    def totals(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns counts by label (L,), of examples, and of those that are right in all."""
        there_bl, predicted_bl, agree_bl = self._compared(ops, outputs, batch)
        exact_b = ops.min(agree_bl, axis=-1)
        by_label = {
            "there": there_bl,
            "predicted": predicted_bl,
            "agree": agree_bl,
            "found": there_bl * predicted_bl,
            "exact": exact_b,
            "examples": ops.ones_like(exact_b),
        }
        return {name: counted(ops, batch, values, [0]) for name, values in by_label.items()}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns F1 over all labels together and as the mean of the labels', and shares of what is right."""
        there = totals["there"]
        predicted = totals["predicted"]
        found = totals["found"]
        examples = max(float(totals["examples"]), 1.0)
        return {
            "f1_micro": float(_f1(found.sum(), there.sum(), predicted.sum())),
            "f1_macro": float(np.mean(_f1(found, there, predicted))),
            "exact_match": float(totals["exact"]) / examples,
            "accuracy": float(totals["agree"].sum()) / (examples * len(self.label_names)),
        }

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model gives one logit a label."""
        check_output(shape, (len(self.label_names),), "one logit a label of the dataset")

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to 1."""
        for name in self.target_names:
            labels = column(source, name)
            if labels is not None and (labels.min(initial=0) < 0 or labels.max(initial=0) > 1):
                wrong = labels.min() if labels.min() < 0 else labels.max()
                raise invalid(
                    "task.target",
                    name,
                    problem=f"a 0 or 1 a label, and the {split} split has {wrong:g}",
                    fix=f"store 0 and 1; {tags_mend(name, int(labels.max(initial=0)) + 1)}"
                    if labels.ndim == 2 and labels.dtype.kind in "iu" and labels.min() >= 0
                    else "store 0 and 1, or set task=regression",
                )

    def predictions(self, ops: Namespace, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the logits and the probabilities, (B, L)."""
        return {"logits": outputs, "probabilities": ops.sigmoid(outputs)}

    def cautions(self, outputs: Array) -> list[str]:
        """Returns what tells that outputs are no logits."""
        return not_logits(outputs, sums_to_one=False)

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the labels, and a picture of their precision and recall."""
        del source
        counts = {name: evaluation.totals[name] for name in ("there", "predicted", "found", "agree")}
        there, predicted, found, agree = (np.rint(values).astype(np.int64) for values in counts.values())
        examples = max(evaluation.examples, 1)
        rows = [
            (
                name,
                float(_f1(found[i], there[i], predicted[i])),
                float(found[i] / predicted[i]) if predicted[i] else None,
                float(found[i] / there[i]) if there[i] else None,
                float(agree[i] / examples),
                int(there[i]),
                int(predicted[i]),
            )
            for i, name in enumerate(self.label_names)
        ]
        head = ("label", "f1", "precision", "recall", "accuracy", "examples", "predicted")
        files: dict[str, Callable[[Path], None]] = {
            "labels.png": partial(pictures.labels, rows=[row[:4] for row in rows], counts=there, split=split)
        }
        return Report(files, {"labels": (head, rows)})


def _f1(found: Array, there: Array, predicted: Array) -> Array:
    """Returns 2 found / (there + predicted), 0 where there is nothing."""
    return np.asarray(2.0 * found / np.maximum(there + predicted, 1.0))


def columns(ops: Namespace, batch: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Returns float32 (B, K) of K columns (B,) or (B, 1), or (B, ...) of one array that has dims of its own."""
    found = [ops.cast(batch[name], "float32") for name in names]
    found = [ops.expand_dims(each, -1) if len(each.shape) == 1 else each for each in found]
    return found[0] if len(found) == 1 else ops.concatenate(found, axis=1)
