"""Options of Keras's optimizer classes, as `optimizer=keras` takes them. Imports no Keras.

Names and defaults are those of Keras 3.15's constructors, which tests/optim/test_keras_classes.py compares them with.
What every class has in common is ours and left out: learning rate, clipping, averages of weights, accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.config.fields import entries, integer, number

# Ranges are those in which the formulas are defined: a decay of 1 keeps the first moment forever, and an epsilon of 0
# makes the update of a weight without a gradient 0 / 0.


@dataclass(frozen=True)
class KerasOptions:
    """Base of the options of a class.

    Attributes:
      weight_decay: decoupled weight decay, multiplied by the learning rate; null: none.
    """

    weight_decay: float | None = number(None, at_least=0.0, example=0.004)


@dataclass(frozen=True)
class Moments(KerasOptions):
    """Base of the options of Adam and its relatives.

    Attributes:
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: added to the denominator for numerical stability.
    """

    beta_1: float = number(0.9, at_least=0.0, below=1.0)
    beta_2: float = number(0.999, at_least=0.0, below=1.0)
    epsilon: float = number(1e-7, above=0.0)


@dataclass(frozen=True)
class Adadelta(KerasOptions):
    """Adadelta (Zeiler, 2012).

    Attributes:
      rho: decay of the mean squares.
      epsilon: added to mean squares for numerical stability.
    """

    rho: float = number(0.95, at_least=0.0, below=1.0)
    epsilon: float = number(1e-7, above=0.0)


@dataclass(frozen=True)
class Adafactor(KerasOptions):
    """Adafactor (Shazeer and Stern, 2018): second moments of matrices by rows and columns.

    Attributes:
      beta_2_decay: exponent of the step in the decay of second moments.
      epsilon_1: added to squared gradients.
      epsilon_2: smallest root mean square of a variable that scales its update.
      clip_threshold: largest root mean square of an update.
      relative_step: limit a constant learning rate to 1 / sqrt(step).
    """

    beta_2_decay: float = number(-0.8, at_most=0.0)
    epsilon_1: float = number(1e-30, above=0.0)
    epsilon_2: float = number(1e-3, above=0.0)
    clip_threshold: float = number(1.0, above=0.0)
    relative_step: bool = True


@dataclass(frozen=True)
class Adagrad(KerasOptions):
    """Adagrad (Duchi et al., 2011).

    Attributes:
      initial_accumulator_value: sum of squared gradients at the start.
      epsilon: added to the sum for numerical stability.
    """

    initial_accumulator_value: float = number(0.1, at_least=0.0)
    epsilon: float = number(1e-7, above=0.0)


@dataclass(frozen=True)
class Adam(Moments):
    """Adam (Kingma and Ba, 2015).

    Attributes:
      amsgrad: divide by the largest second moment so far (Reddi et al., 2018).
    """

    amsgrad: bool = False


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    weight_decay: float | None = number(0.004, at_least=0.0)


@dataclass(frozen=True)
class Adamax(Moments):
    """Adamax: Adam with the infinity norm (Kingma and Ba, 2015).

    Attributes:
      beta_2: decay of the infinity norm.
      epsilon: added to the norm for numerical stability.
    """


@dataclass(frozen=True)
class Ftrl(KerasOptions):
    """Follow the regularized leader (McMahan et al., 2013).

    Attributes:
      learning_rate_power: exponent of the sum of squared gradients.
      initial_accumulator_value: sum of squared gradients at the start.
      l1_regularization_strength: L1 regularization.
      l2_regularization_strength: L2 regularization of the leader.
      l2_shrinkage_regularization_strength: L2 regularization of the gradient.
      beta: smoothing of the learning rate.
    """

    learning_rate_power: float = number(-0.5, at_most=0.0)
    # With 0, the first update of a weight without a gradient would be 0 / 0.
    initial_accumulator_value: float = number(0.1, above=0.0)
    l1_regularization_strength: float = number(0.0, at_least=0.0)
    l2_regularization_strength: float = number(0.0, at_least=0.0)
    l2_shrinkage_regularization_strength: float = number(0.0, at_least=0.0)
    beta: float = number(0.0, at_least=0.0)


@dataclass(frozen=True)
class Lamb(Moments):
    """LAMB (You et al., 2020): Adam scaled by the norms of each variable and its update."""


@dataclass(frozen=True)
class Lion(KerasOptions):
    """Lion (Chen et al., 2023): the sign of an interpolated momentum.

    Attributes:
      beta_1: weight of the momentum in the update.
      beta_2: decay of the momentum.
    """

    beta_1: float = number(0.9, above=0.0, at_most=1.0)
    beta_2: float = number(0.99, at_least=0.0, below=1.0)


@dataclass(frozen=True)
class Muon(KerasOptions):
    """Muon (Jordan et al., 2024) for matrices, and Adam for other variables.

    Attributes:
      adam_beta_1: Adam's decay of the first moment.
      adam_beta_2: Adam's decay of the second moment.
      adam_weight_decay: weight decay of the variables that Adam updates; null: none.
      epsilon: added to Adam's denominator for numerical stability.
      weight_decay: weight decay of the variables that Muon updates; null: no decay at all.
      exclude_layers: regular expressions; Adam updates variables whose path contains a match.
      exclude_embeddings: Adam updates embeddings.
      muon_a: coefficient of the Newton-Schulz iteration.
      muon_b: coefficient of the Newton-Schulz iteration.
      muon_c: coefficient of the Newton-Schulz iteration.
      adam_lr_ratio: factor of the learning rate of the variables that Adam updates.
      momentum: decay of the momentum.
      ns_steps: Newton-Schulz iterations.
      nesterov: Nesterov momentum.
      rms_rate: root mean square of an update, as a multiple of the learning rate; null: not adjusted.
    """

    weight_decay: float | None = number(0.004, at_least=0.0)
    adam_beta_1: float = number(0.9, at_least=0.0, below=1.0)
    adam_beta_2: float = number(0.999, at_least=0.0, below=1.0)
    adam_weight_decay: float | None = number(0.004, at_least=0.0)
    epsilon: float = number(1e-7, above=0.0)
    exclude_layers: list[str] | None = entries(None, example=["head"])
    exclude_embeddings: bool = True
    muon_a: float = number(3.4445)
    muon_b: float = number(-4.7750)
    muon_c: float = number(2.0315)
    adam_lr_ratio: float = number(1.0, above=0.0)
    momentum: float = number(0.95, at_least=0.0, below=1.0)
    ns_steps: int = integer(5, at_least=1)
    nesterov: bool = True
    rms_rate: float | None = number(0.2, above=0.0)


@dataclass(frozen=True)
class Nadam(Moments):
    """Nadam: Adam with Nesterov momentum (Dozat, 2016)."""


@dataclass(frozen=True)
class RMSprop(KerasOptions):
    """RMSprop (Tieleman and Hinton, 2012).

    Attributes:
      rho: decay of the mean square.
      momentum: momentum; 0: none.
      epsilon: added to the denominator for numerical stability.
      centered: normalize by the variance, not by the mean square.
    """

    rho: float = number(0.9, at_least=0.0, below=1.0)
    momentum: float = number(0.0, at_least=0.0, below=1.0)
    epsilon: float = number(1e-7, above=0.0)
    centered: bool = False


@dataclass(frozen=True)
class ScheduleFreeAdamW(KerasOptions):
    """Schedule-free AdamW (Defazio et al., 2024).

    Attributes:
      beta_1: interpolation between the average of the weights and the weights.
      beta_2: decay of the second moment.
      epsilon: added to the denominator for numerical stability.
      warmup_steps: steps of linear warm-up.
    """

    beta_1: float = number(0.9, above=0.0, at_most=1.0)
    beta_2: float = number(0.999, at_least=0.0, below=1.0)
    epsilon: float = number(1e-8, above=0.0)
    warmup_steps: int = integer(0, at_least=0)


@dataclass(frozen=True)
class SGD(KerasOptions):
    """Stochastic gradient descent.

    Attributes:
      momentum: momentum; 0: plain gradient descent.
      nesterov: Nesterov momentum.
    """

    momentum: float = number(0.0, at_least=0.0, below=1.0)
    nesterov: bool = False


# Name of a class in `keras.optimizers` -> its options.
OPTIONS: Mapping[str, type[KerasOptions]] = {
    kind.__name__: kind
    for kind in (
        Adadelta,
        Adafactor,
        Adagrad,
        Adam,
        AdamW,
        Adamax,
        Ftrl,
        Lamb,
        Lion,
        Muon,
        Nadam,
        RMSprop,
        SGD,
        ScheduleFreeAdamW,
    )
}
