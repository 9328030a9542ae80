"""Knowledge distillation: classification that learns from the labels and from the probabilities of a teacher.

A teacher is a frozen model, see `runner.task.teachers`. The loss is that of `keras.distillation.Distiller` with
`LogitsDistillation(loss=KLDivergence())` (Hinton et al., 2015, https://arxiv.org/abs/1503.02531).
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.arrays import Arrays, Tensor
from runner.config.schema_task import ClassificationOptions, DistillationOptions, TaskConfig
from runner.data.base import Array
from runner.errors import invalid
from runner.task import classification
from runner.task.base import Task, TaskData
from runner.task.metrics import MINIMIZE
from runner.task.supervised import counted

# Metric and total of an evaluation: the loss of the teacher's probabilities without its weight, as Keras names it.
METRIC = "distillation_loss"
_EXAMPLES = "distilled_examples"


def _classification_options(options: DistillationOptions) -> ClassificationOptions:
    """Returns the options of the loss and the metrics that compare the student with the labels."""
    return ClassificationOptions(
        label_smoothing=options.label_smoothing,
        class_weights=options.class_weights,
        top_k=options.top_k,
        classes=options.classes,
        metrics=options.metrics,
    )


def directions(options: DistillationOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation except the loss, with the better direction of each."""
    return {**classification.directions(_classification_options(options)), METRIC: MINIMIZE}


def step_metrics(options: DistillationOptions) -> tuple[str, ...]:
    """Returns the names of the metrics of a training step except the loss."""
    return (*classification.step_metrics(_classification_options(options)), METRIC)


def check(options: DistillationOptions) -> None:
    """Checks options without a dataset.

    Raises:
      ConfigError: a value is invalid.
    """
    classification.check(_classification_options(options))


def make(config: TaskConfig, options: DistillationOptions, data: TaskData) -> Task:
    """Returns the task of a run."""
    return Distillation(config, options, data)


class Distillation(classification.Classification):
    """One class per example, learned from labels and from the outputs of a teacher.

    Shapes: B examples, C classes. The batch has the teacher's logits (B, C) under the teacher's name.
    """

    def __init__(self, config: TaskConfig, options: DistillationOptions, data: TaskData) -> None:
        """Settles the classes and their weights; see `runner.task.registry.make_task`."""
        super().__init__(config, _classification_options(options), data)
        # `runner.task.registry.check` has required exactly one.
        ((self._teacher, self._reference),) = config.teachers.items()
        self._temperature = options.temperature
        self._student_weight = options.student_loss_weight
        self.directions = {**self.directions, METRIC: MINIMIZE}
        self.step_metrics = step_metrics(options)

    def _distillation_loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the divergence of the student's softened probabilities from the teacher's, times T squared, (B,).

        The factor keeps the size of its gradients, which shrink with 1 / T squared.

        Raises:
          ConfigError: the teacher's outputs are not one logit per class.
        """
        if self._teacher not in batch:
            self._reject("has several outputs", "export a model with one output, or set task=custom")
        taught_bc = batch[self._teacher]
        if ops.shape(taught_bc)[1:] != ops.shape(outputs)[1:]:
            shape = list(ops.shape(taught_bc)[1:])
            problem = f"must return one logit per class, {list(ops.shape(outputs)[1:])}, but returns {shape}"
            self._reject(problem, "choose a teacher of the same classes")
        taught_bc = taught_bc / self._temperature
        taught_probability_bc = ops.softmax(taught_bc)
        cross_entropy_b = ops.cross_entropy(taught_probability_bc, outputs / self._temperature)
        entropy_b = ops.cross_entropy(taught_probability_bc, taught_bc)
        return (cross_entropy_b - entropy_b) * self._temperature**2

    def _reject(self, problem: str, fix: str) -> None:
        raise invalid(f"task.teachers.{self._teacher}", self._reference, problem=problem, fix=fix)

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the weighted mean (B,) of the labels' loss and the teacher's, times the sample weight."""
        student_b = super().loss(ops, outputs, batch)
        teacher_b = self._weighted(ops, self._distillation_loss(ops, outputs, batch), batch)
        return self._student_weight * student_b + (1.0 - self._student_weight) * teacher_b

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns 1 for each correctly classified example, else 0; and the loss of the teacher's probabilities."""
        metrics = super().metrics(ops, outputs, batch)
        return {**metrics, METRIC: self._distillation_loss(ops, outputs, batch)}

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the totals of a classification; and the sum of the teacher's loss, with the number of examples."""
        loss_b = self._distillation_loss(ops, outputs, batch)
        distilled = {
            METRIC: counted(ops, batch, loss_b, [0]),
            _EXAMPLES: counted(ops, batch, ops.ones_like(loss_b), [0]),
        }
        return {**super().totals(ops, outputs, batch), **distilled}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns the metrics of a classification, and the mean loss of the teacher's probabilities."""
        examples = max(float(totals[_EXAMPLES]), 1.0)
        return {**super().summary(totals), METRIC: float(totals[METRIC]) / examples}
