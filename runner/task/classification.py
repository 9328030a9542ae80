"""One class an example: softmax cross-entropy on logits, accuracy, the confusion matrix, what is got wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.config.schema_task import ClassificationOptions, TaskConfig
from runner.data.base import Array, ArraySpec, DataSource, column
from runner.errors import did_you_mean, invalid
from runner.host.late import late
from runner.task.base import Evaluation, OutputSpec, Report, Table, Tensor
from runner.task.checks import check_output, not_logits
from runner.task.metrics import MAXIMIZE
from runner.task.namespace import Namespace
from runner.task.supervised import Supervised, as_vector, counted, is_real, needed, read_columns, roles
from runner.task.token_checks import tags_mend

if TYPE_CHECKING:
    from runner.task import pictures
else:
    pictures = late("runner.task.pictures")

_MOST_CONFUSED = 1000  # classes of which a batch's whole confusion matrix is counted
_MOST_WRONG = 24  # examples that are shown
_BALANCED = "balanced"
_ROUNDING = 1e-2  # of probabilities that sum to 1


def directions(options: ClassificationOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation beside the loss, each with its better direction."""
    top = {} if options.top_k is None else {f"top_{options.top_k}": MAXIMIZE}
    return {"accuracy": MAXIMIZE, **top}


def of_steps(options: ClassificationOptions) -> tuple[str, ...]:
    """Returns the metrics of a training step beside the loss."""
    del options
    return ("accuracy",)


def check(options: ClassificationOptions) -> None:
    """Checks options, without a dataset.

    Raises:
      ConfigError: a value that can't work.
    """
    classes = options.classes
    count = len(classes) if isinstance(classes, list) else classes
    if options.top_k is not None and count is not None and options.top_k >= count:
        problem = f"must be below the number of classes, {count}"
        raise invalid("task.top_k", options.top_k, problem=problem, fix="set a smaller one, or remove task.top_k")


class Classification(Supervised):
    """One class an example, of integer labels, or of a probability a class, as a mixture of examples has.

    Shapes: B examples, C classes.

    Attributes:
      class_names: in label order.
    """

    def __init__(
        self,
        config: TaskConfig,
        options: ClassificationOptions,
        arrays: Mapping[str, ArraySpec],
        train: DataSource | None,
        constants: Mapping[str, Sequence[float]],
    ) -> None:
        """Takes what `runner.task.registry.make_task` does, with the options typed."""
        super().__init__(roles(config, arrays), arrays, directions(options))
        if len(self.target_names) != 1:
            raise invalid(
                "task.target",
                list(self.target_names),
                problem="one array of classes",
                fix="name one, or set task=multilabel or task=regression",
            )
        self._target = self.target_names[0]
        self._options = options
        self._is_soft = self._check_target(arrays[self._target])
        self.class_names = self._names(arrays[self._target], train, constants)
        if train is not None:
            self.check_split(train, "train")
        self.outputs = OutputSpec(len(self.class_names), self.class_names)
        self.step_metrics = of_steps(options)
        weights = self._class_weights(train, constants)
        self._weights = None if weights is None else np.asarray(weights, np.float32)
        self.constants = {"classes": [len(self.class_names)]} | ({} if weights is None else {"class_weights": weights})

    def _check_target(self, spec: ArraySpec) -> bool:
        """Returns whether the target is a probability a class."""
        whole = np.dtype(spec.dtype).kind in "biu"
        size = int(np.prod(spec.shape))
        is_text = whole and spec.dims == ("sequence",)
        if len(spec.shape) <= 1 and (whole or size > 1) and not is_text:
            return size > 1
        raise invalid(
            "task.target",
            self._target,
            problem="whole numbers, one an example, or one number a class; this array is "
            f"{spec.dtype} of shape {list(spec.shape)}",
            fix="set task=language_model, or name another array"
            if is_text
            else "store the class's number, or set task=regression",
        )

    def _names(
        self, spec: ArraySpec, train: DataSource | None, constants: Mapping[str, Sequence[float]]
    ) -> tuple[str, ...]:
        classes = self._options.classes
        if isinstance(classes, list):
            names = tuple(map(str, classes))
        elif classes is not None:
            names = tuple(map(str, range(int(classes))))
        elif spec.names:
            names = tuple(spec.names)
        elif self._is_soft:
            names = tuple(map(str, range(spec.shape[0])))
        elif "classes" in constants:
            names = tuple(map(str, range(int(constants["classes"][0]))))
        else:
            return tuple(map(str, range(self._counted(train))))
        if self._is_soft and len(names) != spec.shape[0]:
            raise invalid(
                "task.classes", classes, problem=f"{spec.shape[0]}, as array {self._target} has", fix="leave it out"
            )
        if len(names) < 2:
            raise invalid("task.classes", classes, problem="at least 2 classes", fix="set task.classes=2")
        return names

    def _counted(self, train: DataSource | None) -> int:
        """Returns how many classes the train split's labels need."""
        labels = None if train is None else column(train, self._target)
        if labels is None:
            raise invalid(
                "task.classes",
                None,
                problem=f"how many there are, which array {self._target} does not tell",
                fix="say how many, as task.classes=10",
            )
        count = max(int(labels.max(initial=0)) + 1, 2)
        if count > max(len(labels), _MOST_CONFUSED):
            raise invalid(
                "task.target",
                self._target,
                problem=f"the classes' numbers from 0 on; {len(labels):,} examples have numbers up to {count - 1:,}",
                fix=f"set task=regression, or task.classes={count} where there are so many",
            )
        return count

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are from 0 to classes - 1, or a probability a class."""
        labels = column(source, self._target)
        count = len(self.class_names)
        if labels is None:
            return
        if self._is_soft:
            sums = labels.sum(-1)
            wrong = np.flatnonzero((np.abs(sums - 1) > _ROUNDING) | (labels.min(-1) < 0))
            high = int(labels.max(initial=0))
            if len(wrong) and labels.dtype.kind in "iu" and high > 1 and labels.min() >= 0:
                raise invalid(
                    "task.target",
                    self._target,
                    problem="task=classification predicts one class per example, and this array has "
                    f"{labels.shape[1]} integers per example, up to {high} in the {split} split",
                    fix=tags_mend(self._target, high + 1),
                )
            if len(wrong):
                raise invalid(
                    "task.target",
                    self._target,
                    problem="a probability a class, which sum to 1; "
                    f"those of example {wrong[0]} of the {split} split sum to {float(sums[wrong[0]]):g}",
                    fix="set task=multilabel or task=regression",
                )
            return
        low = int(labels.min(initial=0))
        high = int(labels.max(initial=0))
        if low < 0 or high >= count:
            raise invalid(
                "task.target",
                self._target,
                problem=f"labels from 0 to {count - 1}, the {split} split has {low if low < 0 else high}",
                fix="store the classes' numbers from 0 on, or set task.classes to how many there are",
            )

    def _class_weights(
        self, train: DataSource | None, constants: Mapping[str, Sequence[float]]
    ) -> Sequence[float] | None:
        """Returns one weight a class; None: all are 1."""
        key = "task.class_weights"
        given = self._options.class_weights
        names = self.class_names
        if given is None:
            return None
        if given == _BALANCED:
            if "class_weights" in constants:
                return constants["class_weights"]
            labels = read_columns(needed(key, given, train), [self._target])[self._target]
            examples = labels.sum(0) if self._is_soft else np.bincount(labels.reshape(-1), minlength=len(names))
            there = examples > 0
            found = examples.sum() / (there.sum() * np.where(there, examples, 1))
            return [float(weight) if is_there else 1.0 for weight, is_there in zip(found, there, strict=True)]
        if isinstance(given, dict):
            for name in given:
                if str(name) not in names:
                    raise invalid(
                        f"{key}.{name}", given[name], problem="no such class", fix=did_you_mean(str(name), names)
                    )
            named = {str(name): float(weight) for name, weight in given.items()}
            return [named.get(name, 1.0) for name in names]
        if len(given) != len(names):
            raise invalid(key, given, problem=f"{len(names)} weights, one a class", fix="write one for each")
        return [float(weight) for weight in given]

    def _label(self, ops: Namespace, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns int32 (B,), the likeliest class where a label is a probability a class."""
        if self._is_soft:
            return ops.argmax(batch[self._target], -1)
        return ops.cast(as_vector(ops, batch[self._target]), "int32")

    def _probabilities(self, ops: Namespace, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, C), not smoothed."""
        if self._is_soft:
            return ops.cast(batch[self._target], "float32")
        return ops.one_hot(self._label(ops, batch), len(self.class_names))

    def loss(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's cross-entropy (B,) in nats, times the weights of its class and its own."""
        smoothing = self._options.label_smoothing
        classes = len(self.class_names)
        if self._is_soft or smoothing:
            label_bc = self._probabilities(ops, batch) * (1.0 - smoothing) + smoothing / classes
            loss_b = ops.cross_entropy(label_bc, outputs)
        else:
            loss_b = ops.sparse_cross_entropy(self._label(ops, batch), outputs)
        if self._weights is not None:
            loss_b = loss_b * ops.sum(self._probabilities(ops, batch) * self._weights, axis=-1)
        return self._weighted(ops, loss_b, batch)

    def metrics(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns whether each example was got right, 1 or 0."""
        return {"accuracy": ops.cast(ops.equal(ops.argmax(outputs, -1), self._label(ops, batch)), "float32")}

    def totals(self, ops: Namespace, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the confusion matrix (C, C), rows are labels; of many classes its diagonal and sums alone."""
        label_b = self._label(ops, batch)
        classes = len(self.class_names)
        label_bc = ops.one_hot(label_b, classes)
        predicted_bc = ops.one_hot(ops.argmax(outputs, -1), classes)
        real_b1 = is_real(ops, batch, 2)
        label_bc = ops.where(real_b1, label_bc, ops.zeros_like(label_bc))
        found: dict[str, Tensor] = {}
        if classes <= _MOST_CONFUSED:
            found["confusion"] = ops.matmul(ops.transpose(label_bc), predicted_bc)
        else:
            found["right"] = ops.sum(label_bc * predicted_bc, axis=0)
            found["examples"] = ops.sum(label_bc, axis=0)
            found["predicted"] = counted(ops, batch, predicted_bc, [0])
        if self._options.top_k is not None:
            found["top_k"] = counted(ops, batch, self._is_in_top(ops, outputs, label_bc), [0])
        return found

    def _is_in_top(self, ops: Namespace, outputs: Tensor, label_bc: Tensor) -> Tensor:
        """Returns bool (B,): fewer than k outputs are larger than the label's, which is a number."""
        assert self._options.top_k is not None
        is_label = ops.greater(label_bc, 0.0)
        chosen_b1 = ops.sum(ops.where(is_label, outputs, ops.zeros_like(outputs)), axis=-1, keepdims=True)
        larger_b = ops.sum(ops.cast(ops.greater(outputs, chosen_b1), "float32"), axis=-1)
        finite_b = ops.isfinite(ops.sum(chosen_b1, axis=-1))
        return ops.logical_and(ops.less(larger_b, float(self._options.top_k)), finite_b)

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the shares of the examples that were got right."""
        right, examples, _ = _by_class(totals)
        whole = max(float(examples.sum()), 1.0)
        found = {"accuracy": float(right.sum()) / whole}
        if self._options.top_k is not None:
            found[f"top_{self._options.top_k}"] = float(totals["top_k"]) / whole
        return found

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model gives one logit a class."""
        check_output(shape, (len(self.class_names),), "one logit a class of the dataset")

    def predictions(self, ops: Namespace, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the logits (B, C), the probabilities (B, C), and the likeliest class (B,)."""
        return {"logits": outputs, "probabilities": ops.softmax(outputs), "class": ops.argmax(outputs, -1)}

    def cautions(self, outputs: Array) -> list[str]:
        """Returns what tells that outputs are no logits."""
        return not_logits(outputs, sums_to_one=True)

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns the confusion matrix, the examples that were got wrong most confidently, and a table of classes."""
        files: dict[str, Callable[[Path], None]] = {}
        tables = {"classes": self._class_table(evaluation.totals)}
        if "confusion" in evaluation.totals:
            matrix = np.rint(evaluation.totals["confusion"]).astype(np.int64)
            files["confusion.png"] = partial(
                pictures.confusion, matrix=matrix, class_names=self.class_names, split=split
            )
        count = len(evaluation.outputs)
        if not count:
            return Report(files, tables)
        labels = read_columns(source, [self._target], count)[self._target]
        labels = labels.argmax(-1) if self._is_soft else labels.reshape(-1)
        missed, predicted, probability = missed_examples(labels, evaluation.outputs)
        shown = missed[:_MOST_WRONG]
        images = next((name for name in self.input_names if self.arrays[name].is_image), None)
        if images is None:
            rows = [
                (int(row), self.class_names[labels[row]], self.class_names[guess], float(share))
                for row, guess, share in zip(shown, predicted, probability, strict=False)
            ]
            tables["most confidently wrong"] = (("example", "label", "predicted", "probability"), rows)
            return Report(files, tables)
        names = self.class_names
        captions = [
            (names[labels[row]], f"{pictures.short(names[guess])}, {share:.1%}")
            for row, guess, share in zip(shown, predicted, probability, strict=False)
        ]
        title = f"{len(missed):,} of {count:,} {split} examples are wrong"
        files["wrong.png"] = partial(
            pictures.wrong, images=source.read(shown)[images], captions=captions, title=title, total=len(missed)
        )
        return Report(files, tables)

    def _class_table(self, totals: Mapping[str, Array]) -> Table:
        """Returns precision and recall of each class; None where there is none of it."""
        rows = [
            (name, _share(right, predicted), _share(right, examples), int(examples), int(predicted))
            for name, right, examples, predicted in zip(self.class_names, *_by_class(totals), strict=True)
        ]
        return ("class", "precision", "recall", "examples", "predicted"), rows


def _by_class(totals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Returns int64 counts by class of what was got right, of examples and of predictions."""
    if "confusion" in totals:
        matrix = np.rint(totals["confusion"]).astype(np.int64)
        return np.diag(matrix), matrix.sum(1), matrix.sum(0)
    right, examples, predicted = (
        np.rint(totals[name]).astype(np.int64) for name in ("right", "examples", "predicted")
    )
    return right, examples, predicted


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def missed_examples(labels: Array, logits: Array) -> tuple[Array, Array, Array]:
    """Finds the examples that were got wrong, the most confident first.

    Args:
      labels: int (N,).
      logits: float32 (N, C).

    Returns:
      Of each: its number, the class predicted, and that class's probability.
    """
    if not len(logits):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    predicted = logits.argmax(axis=1)
    probability = shifted.max(axis=1) / shifted.sum(axis=1)
    missed = np.flatnonzero(predicted != labels)
    missed = missed[np.argsort(-probability[missed], kind="stable")]
    return missed, predicted[missed], probability[missed]
