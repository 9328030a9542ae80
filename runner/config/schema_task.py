"""The part of the run config that says what to learn. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.config.fields import IDENTIFIER, NOT_EMPTY, checked, integer, number, valid_if
from runner.errors import shown

_SCALE = valid_if(lambda value: value == "auto" or isinstance(value, bool), "must be auto, true or false")
_MAPPING = valid_if(lambda value: isinstance(value, dict), "must be a mapping from options to values")


@dataclass(frozen=True)
class TaskConfig:
    """The task, and the arrays of the dataset that it uses.

    Attributes:
      name: `classification`, `binary`, `multilabel`, `positions`, `regression`, `language_model`,
        `several`, `custom`, `step` or `compiled`.
      target: arrays to predict, a name or a list in YAML; empty: the first that exists of `label`, `labels`, `target`
        and `y`.
      inputs: arrays that the model takes; null: all that are neither target nor sample weight.
      example_weight: array with one number per example that its loss is multiplied by (Keras's `sample_weight`). null:
        none.
      options: the keys of the task's own dataclass in `OPTIONS`.
      scale_images: divide the bytes of images by 255; false: they are floats of 0 to 255; `auto`: divide them, unless
        the model's first layers rescale its input. Images that are targets are divided unless it is false.
    """

    # No fixed choices: `runner.task.registry` registers further tasks in `OPTIONS`, by which names are checked.
    name: str = "classification"
    # The arrays are those of the dataset, so names are checked when it is opened.
    target: list[str] = field(default_factory=list)
    inputs: list[str] | None = None
    example_weight: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    scale_images: Any = checked("auto", whole=_SCALE, rule="auto, true or false", example="auto")


def _classes_problem(classes: object) -> str | None:
    if not isinstance(classes, list):
        return _count_problem(classes)
    if not all(isinstance(name, str | int) for name in classes):
        return "names must be strings or integers; put them in quotes"
    if len(set(map(str, classes))) < len(classes):
        return "names must be unique; rename or remove one of them"
    return _count_problem(len(classes))


def _count_problem(count: object) -> str | None:
    # A single class would leave nothing to learn, and to Python True is an integer.
    is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 2
    if is_count:
        return None
    return "must be at least 2, or a list of at least 2 names"


def _class_weights_problem(weights: object) -> str | None:
    if weights == "balanced":
        return None
    if isinstance(weights, list):
        by_name: Mapping[object, object] = {f"class {index}": weight for index, weight in enumerate(weights)}
    elif isinstance(weights, dict):
        by_name = weights
    else:
        return "must be balanced, a list of one weight per class, or a mapping from class names to weights"
    for name, weight in by_name.items():
        # To Python True is a number, but no weight.
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:  # type: ignore[operator]
            # An example of all weights would replace those that are valid.
            problem = f"the weight of {name} must be a finite number of at least 0, not {shown(weight)}"
            return f"{problem}; set the weight of {name} to 1.0"
    return None


def _metrics_problem(metrics: object) -> str | None:
    """Returns what is wrong with the form of `task.metrics`, or None; names and options are checked with the task."""
    if not isinstance(metrics, list):
        return "must be a list of metrics"
    for metric in metrics:
        if isinstance(metric, str):
            continue
        if not isinstance(metric, Mapping) or len(metric) != 1:
            return f"each must be the name of a metric, or {{name: {{option: value}}}}, not {shown(metric)}"
        ((name, options),) = metric.items()
        if not isinstance(options, Mapping) and options is not None:
            return f"the options of {name} must be {{option: value}}, not {shown(options)}"
    return None


@dataclass(frozen=True)
class KerasChoices:
    """What tasks take of Keras.

    Attributes:
      from_logits: the model returns logits; false: it ends in a softmax or a sigmoid and returns probabilities.
      loss: name of a Keras loss, such as `categorical_focal_crossentropy`; null: the cross-entropy.
      loss_options: options of that loss, such as `{gamma: 3.0}` of a focal cross-entropy; null: Keras's defaults.
      metrics: Keras metrics that evaluations add, such as `[AUC,{Precision:{thresholds:0.3}}]`; null: none.
    """

    from_logits: bool = True
    loss: str | None = None
    loss_options: Any = checked(None, whole=_MAPPING, rule="mapping from options to values", example={"gamma": 2.0})
    metrics: Any = checked(None, whole=_metrics_problem, rule="list of Keras metrics", example=["AUC"])


@dataclass(frozen=True)
class WeightedClasses(KerasChoices):
    """Classes whose losses have weights.

    Attributes:
      class_weights: weight of the loss per class: a list in label order, class name -> weight (others 1), or
        `balanced`: labels / (classes * labels of the class) in the train split. null: none.
    """

    class_weights: Any = checked(
        None,
        whole=_class_weights_problem,
        rule="balanced, a list of numbers, or a mapping from names to numbers",
        example="balanced",
    )


@dataclass(frozen=True)
class ClassificationOptions(WeightedClasses):
    """One class per example, with softmax cross-entropy.

    Attributes:
      label_smoothing: fraction of each label that is spread over all classes.
      classes: number of classes, or their names; null: as in the dataset, or counted in the train split.
    """

    # With 1, every class would have the same probability whatever the label is.
    label_smoothing: float = number(0.0, at_least=0.0, below=1.0)
    classes: Any = checked(None, whole=_classes_problem, rule="integer, at least 2, or list of names", example=10)


@dataclass(frozen=True)
class BinaryOptions(WeightedClasses):
    """One of two classes per example, with one logit and sigmoid cross-entropy.

    Attributes:
      threshold: probability above which an example is predicted to be positive.
      label_smoothing: fraction of each label that is moved to 0.5.
    """

    threshold: float = number(0.5, above=0.0, below=1.0)
    label_smoothing: float = number(0.0, at_least=0.0, below=1.0)


@dataclass(frozen=True)
class PositionsOptions(ClassificationOptions):
    """One class per pixel, time step or token (semantic segmentation, tagging), with softmax cross-entropy.

    Attributes:
      ignore_index: label that is not counted, neither in the loss nor in a metric, such as 255 or -1; null: none.
      label_weight: array with the weight of each label, 0 for padding; mask: of a model that masks 0; null: none.
    """

    ignore_index: int | None = integer(None, example=255)
    label_weight: str | None = None


@dataclass(frozen=True)
class MultilabelOptions(KerasChoices):
    """Any number of labels per example (multi-label classification), with sigmoid cross-entropy.

    Attributes:
      threshold: probability above which a label is predicted.
      label_smoothing: fraction of each label that is moved to 0.5.
    """

    threshold: float = number(0.5, above=0.0, below=1.0)
    label_smoothing: float = number(0.0, at_least=0.0, below=1.0)


@dataclass(frozen=True)
class RegressionOptions(KerasChoices):
    """One or more numbers per example.

    Attributes:
      loss: name of a Keras loss, such as `mean_squared_error` or `binary_crossentropy`.
      from_logits: a cross-entropy takes logits; false: probabilities, as in Keras.
    """

    loss: str = "mean_squared_error"
    from_logits: bool = False


@dataclass(frozen=True)
class SampleOptions:
    """Text that a language model samples at each evaluation.

    It is sampled once greedily and once at random.

    Attributes:
      prompt: start of the text; null: a new line, or the end-of-document token if the vocabulary has one and the model
        learns what follows it, as with `documents=joined`.
      tokens: number of sampled tokens; null: 256, or as many as fit into a row.
      temperature: sampling temperature, by which logits are divided; 0: greedy only.
    """

    prompt: str | None = checked(None, test=NOT_EMPTY, rule="not empty", example="Once upon a time")
    tokens: int | None = integer(None, at_least=1, example=256)
    temperature: float = number(0.8, at_least=0.0)


@dataclass(frozen=True)
class LanguageModelOptions:
    """Next-token prediction, with softmax cross-entropy over a vocabulary.

    Attributes:
      vocabulary: vocabulary size; null: that of the dataset.
      label_weight: array with the weight of each label, 0 for padding and at the end of a document; null:
        `label_weight` if the dataset has it, else 1 for all.
      sample: text that is sampled at each evaluation; null: none.
    """

    vocabulary: int | None = integer(None, at_least=1, example=256)
    label_weight: str | None = None
    sample: SampleOptions | None = field(default_factory=SampleOptions)


@dataclass(frozen=True)
class CustomOptions:
    """A custom loss and metrics, see docs/tasks.md.

    They are functions `(ops, outputs, batch) -> (B,)`.

    Attributes:
      target: `_target_` in YAML; import path of the loss.
      maximize: import paths of metrics to maximize; a name without a dot is in the module of the loss.
      minimize: import paths of metrics to minimize; a name without a dot is in the module of the loss.
      units: size of the last dim of the model's output; null: that of the target.
      whole_batch: the functions compare the rows of the whole global batch, so that a step can't be split.
    """

    target: str = ""
    maximize: list[str] = field(default_factory=list)
    minimize: list[str] = field(default_factory=list)
    units: int | None = integer(None, at_least=1)
    whole_batch: bool = False


@dataclass(frozen=True)
class StepOptions:
    """A custom training step, see docs/custom_steps.md.

    Attributes:
      target: `_target_` in YAML; import path of the class with `build`, `train_step` and `evaluate`.
      arguments: keyword arguments of the class.
      maximize: metrics of `evaluate` that should rise, beside the loss.
      minimize: metrics of `evaluate` that should fall, beside the loss.
      log: metrics of `train_step` beside the loss.
      exported: name of the model that is exported; empty: the first one.
    """

    target: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    maximize: list[str] = field(default_factory=list)
    minimize: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    exported: str = ""


@dataclass(frozen=True)
class CompiledOptions:
    """Loss, metrics and optimizer of the model's own `compile`, see docs/own_model.md."""


def _outputs_problem(outputs: object) -> str | None:
    assert isinstance(outputs, dict)
    if len(outputs) < 2:
        return f"needs at least two outputs of the model, but has {len(outputs) or 'none'}"
    # Their values are checked one by one afterwards.
    weights = [output.weight for output in outputs.values() if isinstance(output, OutputConfig)]
    if weights and not any(weights):
        return "at least one output must have a weight above 0"
    return None


@dataclass(frozen=True)
class OutputConfig:
    """One output of a model, the task that judges it, and its share of the loss.

    Attributes:
      name: of the task, such as `regression`.
      target: arrays to predict, a name or a list in YAML; empty: the array with the name of the output.
      weight: factor of its loss in the sum (Keras's `loss_weights`).
      example_weight: array with one number per example that its loss is multiplied by; null: `task.example_weight`.
      options: the keys of the task's own dataclass in `OPTIONS`.
    """

    name: str
    target: list[str] = field(default_factory=list)
    weight: float = number(1.0, at_least=0.0)
    example_weight: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Returns what an error shows of it: the task's name, and the weight if that is not 1."""
        if self.weight == 1.0:
            return self.name
        return f"{{name:{self.name},weight:{self.weight:g}}}"


@dataclass(frozen=True)
class SeveralOptions:
    """Several outputs, each with a task of its own; the loss is the weighted sum of their losses.

    Attributes:
      outputs: output of the model -> its task's name, the options of that task, and `weight`, the factor of its loss.
    """

    outputs: dict[str, OutputConfig] = checked(
        {},
        whole=_outputs_problem,
        rule="at least two",
        example={"age": {"name": "regression"}, "gender": {"name": "binary"}},
        key_pattern=IDENTIFIER,
    )


OPTIONS: dict[str, type[Any]] = {
    "classification": ClassificationOptions,
    "binary": BinaryOptions,
    "multilabel": MultilabelOptions,
    "positions": PositionsOptions,
    "regression": RegressionOptions,
    "language_model": LanguageModelOptions,
    "several": SeveralOptions,
    "custom": CustomOptions,
    "step": StepOptions,
    "compiled": CompiledOptions,
}
