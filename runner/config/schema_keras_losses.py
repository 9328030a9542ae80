"""Options of Keras's losses, as `task.loss_options` takes them. Imports no Keras.

Names and defaults are those of Keras 3.15's classes, which tests/task/test_losses.py compares with ours. What a task
has a key for, such as `from_logits`, is not an option of its loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.config.fields import number


@dataclass(frozen=True)
class NoOptions:
    """A loss without options."""


@dataclass(frozen=True)
class Smoothed:
    """A cross-entropy.

    Attributes:
      label_smoothing: fraction of each label that is spread over all classes, or moved to 0.5. A task that has a key
        of this name uses that.
    """

    label_smoothing: float = number(0.0, at_least=0.0, below=1.0)


@dataclass(frozen=True)
class BinaryFocal(Smoothed):
    """Focal cross-entropy of 0 and 1.

    Attributes:
      gamma: exponent of 1 - probability of the label.
      apply_class_balancing: weight 1 by `alpha` and 0 by 1 - `alpha`.
      alpha: weight of 1.
    """

    gamma: float = number(2.0, at_least=0.0)
    apply_class_balancing: bool = False
    alpha: float = number(0.25, at_least=0.0, at_most=1.0)


@dataclass(frozen=True)
class CategoricalFocal(Smoothed):
    """Focal cross-entropy of several classes.

    Attributes:
      gamma: exponent of 1 - probability.
      alpha: factor of the loss.
    """

    gamma: float = number(2.0, at_least=0.0)
    alpha: float = number(0.25, at_least=0.0)


@dataclass(frozen=True)
class Generalized:
    """Generalized cross-entropy.

    Attributes:
      q: near 0 it is like the cross-entropy, near 1 like the absolute error.
    """

    q: float = number(0.5, above=0.0, below=1.0)


@dataclass(frozen=True)
class Tversky:
    """Tversky index.

    Attributes:
      alpha: weight of targets that the output lacks, as Keras computes it.
      beta: weight of outputs that the target lacks, as Keras computes it.
    """

    alpha: float = number(0.5, at_least=0.0)
    beta: float = number(0.5, at_least=0.0)


@dataclass(frozen=True)
class Huber:
    """Squared errors near 0, absolute ones elsewhere.

    Attributes:
      delta: error above which the loss grows linearly. A task that has a key of this name uses that.
    """

    delta: float = number(1.0, above=0.0)


# Name of a loss -> its options, if it has any.
OPTIONS: Mapping[str, type] = {
    "binary_crossentropy": Smoothed,
    "binary_focal_crossentropy": BinaryFocal,
    "categorical_crossentropy": Smoothed,
    "categorical_focal_crossentropy": CategoricalFocal,
    "categorical_generalized_cross_entropy": Generalized,
    "tversky": Tversky,
    "huber": Huber,
}
