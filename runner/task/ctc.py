"""Connectionist temporal classification: a sequence of labels that is shorter than that of its steps (CTC).

Graves et al., Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent Neural
Networks (2006). The loss is Keras 3's `keras.ops.ctc_loss`, a loop over the steps, which DTensor can't place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import CtcOptions, TaskConfig
from runner.data.base import WEIGHT, Array, DataSource, column
from runner.errors import ConfigError, invalid
from runner.task.base import Cell, Evaluation, OutputSpec, Report, Task, TaskData
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.supervised import Supervised, as_vector, default_target, no_array, roles

# Names of the arrays of `Ctc.totals`, and of the sums of `Ctc.addends`.
_PATH = "path"
_LABELS = "labels"
_EXAMPLE = "example"
_STEPS = "steps"
_EDITS = "edits"
_LENGTH = "length"
_EXACT = "exact"
_EXAMPLES = "examples"


def directions(options: CtcOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    del options
    return {"label_error_rate": MINIMIZE, "exact_match": MAXIMIZE}


def step_metrics(options: CtcOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss: none, as they need decoding on the host."""
    del options
    return ()


def check(options: CtcOptions) -> None:
    """Checks options without a dataset.

    Raises:
      ConfigError: a value is invalid.
    """
    if options.classes is not None and options.blank >= options.classes:
        raise invalid(
            "task.blank",
            options.blank,
            problem=f"must be below task.classes={options.classes}, which includes the blank",
            fix=f"set task.blank={options.classes - 1}, or more classes",
        )


def make(config: TaskConfig, options: CtcOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return Ctc(config, options, data)


class Ctc(Supervised):
    """Labels (B, L), padded at their end, of logits (B, T, C) for T steps; C includes the blank.

    Shapes: B examples, T steps, L labels at most, C classes.
    """

    def __init__(self, config: TaskConfig, options: CtcOptions, data: TaskData) -> None:
        """Settles the arrays and the classes; see `runner.task.registry.make_task`."""
        super().__init__(roles(_without_length(config, options, data), data.arrays), data.arrays, directions(options))
        self._options = options
        self._padding = options.blank if options.padding is None else options.padding
        self._target = self._check_target()
        self._length = self.arrays[self._target].shape[0]
        self._input_length = options.input_length
        if options.input_length is not None:
            self._add_input_length(options.input_length, data)
        self._units = self._count_classes(data)
        # Steps that the labels of the checked splits need, and the largest number of steps that they have.
        self._needed_steps = 1
        self._longest_input = 0
        self.outputs = OutputSpec(self._units)
        self.step_metrics = step_metrics(options)
        self.constants = {"classes": [self._units]}
        if data.train is not None:
            self.check_split(data.train, "train")

    def _check_target(self) -> str:
        """Returns the name of the target, an array of integers (B, L)."""
        name = self.target_names[0]
        spec = self.arrays[name]
        if len(self.target_names) > 1 or len(spec.shape) != 1 or np.dtype(spec.dtype).kind not in "iu":
            raise invalid(
                "task.target",
                ",".join(self.target_names),
                problem="task=ctc needs one array of integers, the labels of each example with padding at their end, "
                f"but {name} has dtype {spec.dtype} and shape {list(spec.shape)}",
                fix="name another array",
            )
        return name

    def _add_input_length(self, name: str, data: TaskData) -> None:
        """Adds the array of the numbers of steps."""
        spec = data.arrays.get(name)
        problem = ""
        if spec is None:
            problem = no_array(name, data.arrays)
        elif spec.shape not in ((), (1,)) or np.dtype(spec.dtype).kind not in "iu":
            problem = (
                "must be an array of one integer per example, but its dtype is "
                f"{spec.dtype} and its shape {list(spec.shape)}"
            )
        if spec is None or problem:
            fix = "name another array, or remove task.input_length to use every step"
            raise invalid("task.input_length", name, problem=problem, fix=fix)
        self.arrays = {**self.arrays, name: spec}

    def _count_classes(self, data: TaskData) -> int:
        """Returns C: of the config, of the resumed run, or counted in the train split."""
        if self._options.classes is not None:
            return self._options.classes
        if "classes" in data.constants:
            return int(data.constants["classes"][0])
        labels = None if data.train is None else column(data.train, self._target)
        if labels is None:
            raise invalid(
                "task.classes",
                None,
                problem=f"needs the number of classes with the blank, which array {self._target} does not show",
                fix="set it, such as task.classes=29",
            )
        counted = labels[labels != self._padding]
        return max(int(counted.max(initial=0)), self._options.blank) + 1

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels are classes other than the blank, with all padding at their end."""
        labels = column(source, self._target)
        if labels is None:
            return
        is_label = labels != self._padding
        counted = labels[is_label]
        low = int(counted.min(initial=0))
        high = int(counted.max(initial=0))
        if low < 0 or high >= self._units:
            wrong = low if low < 0 else high
            raise invalid(
                "task.target",
                self._target,
                problem=f"labels must be from 0 to {self._units - 1}, but the {split} split has {wrong}",
                fix=f"set task.padding={wrong}" if low < 0 else f"set task.classes={high + 1}",
            )
        if (counted == self._options.blank).any():
            raise invalid(
                "task.blank",
                self._options.blank,
                problem=f"must not be a label, but the {split} split has it",
                fix=f"set task.blank={self._units} task.classes={self._units + 1}, or number the labels from 1",
            )
        # A label after padding would count as one label less, at the wrong place.
        resumes = is_label[:, 1:] & ~is_label[:, :-1]
        if resumes.any():
            example = int(np.flatnonzero(resumes.any(-1))[0])
            raise invalid(
                "task.target",
                self._target,
                problem=f"padding ({self._padding}) must be after all labels, but example {example} of the {split} "
                "split has a label after it",
                fix="move the labels to the front, or set task.padding to the number that marks padding",
            )
        self._check_steps(source, split, needed_steps(labels, is_label))

    def _check_steps(self, source: DataSource, split: str, needed: Array) -> None:
        """Checks that each example has as many steps as its labels need, if the dataset has their number.

        With fewer steps no path has the labels: Keras's loss is then 100,000, without a gradient.

        Args:
          source: the split.
          split: its name.
          needed: number of steps (N,) that the labels of each example need.
        """
        self._needed_steps = max(self._needed_steps, int(needed.max(initial=0)))
        steps = None
        if self._input_length is not None:
            steps = column(source, self._input_length)
        if steps is None:
            return
        steps = steps.reshape(-1)
        self._longest_input = max(self._longest_input, int(steps.max(initial=0)))
        too_short = np.flatnonzero(steps < needed)
        if len(too_short):
            example = int(too_short[0])
            raise invalid(
                "task.input_length",
                self._input_length,
                problem=f"example {example} of the {split} split has {steps[example]} steps, but its labels need "
                f"{needed[example]}: one each, and one between equal neighbors ({len(too_short):,} such examples)",
                fix="remove these examples, or shorten their labels",
            )

    def _is_label(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns bool (B, L), False for padding."""
        return ops.not_equal(ops.cast(batch[self._target], "int32"), self._padding)

    def _steps(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns int32 (B,), the number of steps of each example."""
        if self._input_length is None:
            steps = ops.zeros_like(ops.cast(batch[WEIGHT], "int32")) + int(outputs.shape[1])
            return ops.cast(steps, "int32")
        return ops.cast(as_vector(ops, batch[self._input_length]), "int32")

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's negative log-likelihood (B,) in nats, times its sample weight."""
        is_label_bl = self._is_label(ops, batch)
        label_bl = ops.cast(batch[self._target], "int32")
        # Padding may be a number that is not a class.
        label_bl = ops.where(is_label_bl, label_bl, ops.zeros_like(label_bl) + self._options.blank)
        length_b = ops.sum(ops.cast(is_label_bl, "int32"), axis=-1)
        nats_b = ops.keras.ops.ctc_loss(
            label_bl, outputs, length_b, self._steps(ops, outputs, batch), mask_index=self._options.blank
        )
        return self._weighted(ops, nats_b, batch)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns nothing: the metrics need decoding on the host."""
        del ops, outputs, batch
        return {}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the most probable class of each step (B, T), the labels (B, L), and the numbers of steps (B,)."""
        return {
            _PATH: ops.cast(ops.argmax(outputs, -1), "float32"),
            _LABELS: ops.cast(batch[self._target], "float32"),
            _STEPS: ops.cast(self._steps(ops, outputs, batch), "float32"),
            _EXAMPLE: ops.cast(batch[WEIGHT], "float32"),
        }

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns numbers of edits, of labels, of exact matches and of examples, after greedy decoding."""
        edits = 0
        length = 0
        exact = 0
        real = np.flatnonzero(totals[_EXAMPLE] > 0)
        for row in real:
            labels = totals[_LABELS][row]
            labels = labels[labels != self._padding]
            decoded = self._decoded(totals[_PATH][row], int(totals[_STEPS][row]))
            distance = edit_distance(decoded, labels)
            edits += distance
            length += len(labels)
            exact += int(distance == 0)
        sums = {_EDITS: edits, _LENGTH: length, _EXACT: exact, _EXAMPLES: len(real)}
        return {name: np.asarray(value, np.float64) for name, value in sums.items()}

    def _decoded(self, path: Array, steps: int) -> Array:
        """Returns the labels of a path (T,): equal neighbors count once, and blanks not at all."""
        path = path[:steps]
        starts = np.ones(len(path), bool)
        starts[1:] = path[1:] != path[:-1]
        return np.asarray(path[starts & (path != self._options.blank)])

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns edits per label, and the share of examples whose labels are all decoded correctly."""
        return {
            "label_error_rate": float(totals[_EDITS]) / (float(totals[_LENGTH]) or 1.0),
            "exact_match": float(totals[_EXACT]) / (float(totals[_EXAMPLES]) or 1.0),
        }

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one logit per class for each step, and enough steps."""
        if len(shape) != 3 or shape[2] != self._units or shape[1] is None:
            raise ConfigError(
                f"model._target_: the model's output has shape {list(shape)}, but the task needs [batch, steps, "
                f"{self._units}] with a fixed number of steps (one logit per class and step, the blank among them); "
                "end the model in a layer of that shape, or set task.classes"
            )
        if shape[1] < self._needed_steps:
            raise ConfigError(
                f"model._target_: the model returns {shape[1]} steps, but {self._target} has labels that need "
                f"{self._needed_steps}: CTC needs one step per label, and one between equal neighbors; reduce the "
                "model's strides"
            )
        if shape[1] < self._longest_input:
            raise ConfigError(
                f"task.input_length={self._input_length}: must be numbers of steps of the model's output, which has "
                f"{shape[1]}, but are up to {self._longest_input}; divide them by the model's strides"
            )

    def predictions(self, ops: Arrays, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the logits (B, T, C) and the most probable class of each step (B, T)."""
        return {"logits": outputs, "class": ops.argmax(outputs, -1)}

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of the numbers of labels, edits and exact matches."""
        del source, split
        names = {"examples": _EXAMPLES, "labels": _LENGTH, "edits": _EDITS, "exact matches": _EXACT}
        rows: list[tuple[Cell, ...]] = []
        for name, key in names.items():
            rows.append((name, round(float(evaluation.totals[key]))))
        return Report({}, {"counted": (("counted", "number"), rows)})


def needed_steps(labels: Array, is_label: Array) -> Array:
    """Returns the least numbers of steps (N,) in which CTC can write labels: equal neighbors need a blank in between.

    Args:
      labels: int (N, L).
      is_label: bool (N, L), False for padding.
    """
    repeats = (labels[:, 1:] == labels[:, :-1]) & is_label[:, 1:]
    return np.asarray(is_label.sum(-1) + repeats.sum(-1))


def edit_distance(first: Array, second: Array) -> int:
    """Returns the least number of inserted, deleted and replaced labels (Levenshtein distance).

    Args:
      first: (n,).
      second: (m,).
    """
    # Row i: distances between the first i labels of `first` and each start of `second`.
    row = np.arange(len(second) + 1)
    for label in first:
        replaced = row[:-1] + (second != label)
        deleted = row[1:] + 1
        best = np.concatenate([[row[0] + 1], np.minimum(replaced, deleted)])
        # Insertions run along the row: the least of each entry to the left plus its distance.
        places = np.arange(len(best))
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])


def _without_length(config: TaskConfig, options: CtcOptions, data: TaskData) -> TaskConfig:
    """Returns the config with the names of the inputs: the numbers of steps are not a default input."""
    if config.inputs is not None or options.input_length is None:
        return config
    target = tuple(config.target) or default_target(data.arrays)
    others = {*target, config.example_weight, options.input_length}
    return replace(config, inputs=[name for name in data.arrays if name not in others])
