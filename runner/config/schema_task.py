"""The part of the run config that says what is to be learned. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.


@dataclass
class TaskConfig:
    """Loss and metrics, and which arrays of the dataset they are of.

    Attributes:
      name: `classification`, `multilabel`, `regression`, `language_model` or `custom`.
      target: names of the arrays to be predicted, a name or a list in YAML; empty: the first there of `label`,
        `labels`, `target` and `y`.
      inputs: names of the arrays that the model takes; null: all that are neither target nor example weight.
      example_weight: name of the array, one number an example, that the loss is multiplied by; null: none.
      options: those of `OPTIONS`, for the task's name.
    """

    name: str = "classification"
    target: list[str] = field(default_factory=list)
    inputs: list[str] | None = None
    example_weight: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ClassificationOptions:
    """One class an example, by softmax cross-entropy.

    Attributes:
      label_smoothing: share of each label that is spread over all classes.
      class_weights: what the loss of each class's examples is multiplied by: a list in label order, class name ->
        weight (others 1), or `balanced`: examples / (classes * examples of the class), in the train split.
      top_k: counts an example as right in `top_<k>` where its label is among the k largest outputs; null: no metric.
      classes: how many there are, or their names; null: as the dataset names them, or counted in the train split.
    """

    label_smoothing: float = 0.0
    class_weights: Any = None
    top_k: int | None = None
    classes: Any = None


@dataclass
class MultilabelOptions:
    """Any number of labels an example, by sigmoid cross-entropy.

    Attributes:
      threshold: probability above which a label is predicted.
      label_smoothing: share of each label that is moved to 0.5.
    """

    threshold: float = 0.5
    label_smoothing: float = 0.0


@dataclass
class RegressionOptions:
    """Numbers.

    Attributes:
      loss: a name of Keras's regression losses, as `mean_squared_error`.
      delta: of the loss `huber`, the error from which it grows linearly.
      standardize: trains on (target - mean) / deviation of the train split; metrics are of the target as it is.
    """

    loss: str = "mean_squared_error"
    delta: float = 1.0
    standardize: bool = False


@dataclass
class SampleOptions:
    """Text that a language model writes at each evaluation, once by the likeliest tokens and once by chance.

    Attributes:
      prompt: what it begins with; null: a new line, or the end of a document where the vocabulary has such a token and
        what follows it is learnt, as with `documents=joined`.
      tokens: how many are written; null: 256, or as many as a row has room for.
      temperature: what logits are divided by before one is drawn; 0: the likeliest tokens alone.
    """

    prompt: str | None = None
    tokens: int | None = None
    temperature: float = 0.8


@dataclass
class LanguageModelOptions:
    """The next token of each token, by softmax cross-entropy over a vocabulary.

    Attributes:
      vocabulary: how many tokens there are; null: as the dataset's vocabulary has them.
      label_weight: array of what each label counts for, 0 of padding and at a document's end; null: `label_weight`,
        where the dataset has it, else all count.
      sample: text that is written at each evaluation; null: none.
    """

    vocabulary: int | None = None
    label_weight: str | None = None
    sample: SampleOptions | None = field(default_factory=SampleOptions)

    def __post_init__(self) -> None:
        """Takes the sample's keys as YAML has them."""
        if isinstance(self.sample, dict):
            self.sample = SampleOptions(**self.sample)


@dataclass
class CustomOptions:
    """A user's own loss and metrics: functions `(ops, outputs, batch) -> (B,)`, see docs/tasks.md.

    Attributes:
      target: `_target_` in YAML; import path of the loss.
      maximize: import paths of the metrics of which more is better; a name without a dot is in the loss's module.
      minimize: likewise, of which less is better.
      units: size of the last dim of the model's output; null: as the target's.
    """

    target: str = ""
    maximize: list[str] = field(default_factory=list)
    minimize: list[str] = field(default_factory=list)
    units: int | None = None


LANGUAGE_MODEL = "language_model"
OPTIONS: dict[str, type[Any]] = {
    "classification": ClassificationOptions,
    "multilabel": MultilabelOptions,
    "regression": RegressionOptions,
    LANGUAGE_MODEL: LanguageModelOptions,
    "custom": CustomOptions,
}
