"""Update rules of Keras's elementwise optimizers, by the names of Keras's options.

The formulas are those of Keras 3.15 and tf_keras 2.21, which `runner.verify` compares them with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.arrays import Arrays, Tensor
from runner.config.values import as_float32
from runner.host.late import late
from runner.optim.base import Rule, Slots, Update

if TYPE_CHECKING:
    import numpy as np
else:
    # The registry of optimizers is imported before a config is known to be valid, which needs no NumPy.
    np = late("numpy")

Options = Mapping[str, Any]
Updated = tuple[Tensor, Slots]

# Nadam's schedule of the momentum: beta_1 * (1 - 0.5 * 0.96^step), by Keras and by Dozat (2016).
_NADAM_DECAY = 0.96
# From step 512 on, 0.96^step is below 1e-9, and a factor 1 - 0.5 * 0.96^step is 1 in float32.
_NADAM_STEPS = 512


def with_weight_decay(update: Update, weight_decay: float) -> Update:
    """Returns an update after decoupled weight decay, as Keras has it before every update."""

    def decayed(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        return update(gradient, weight - weight * (weight_decay * rate), slots, rate, step)

    return decayed


def adadelta(options: Options, xp: Arrays) -> Rule:
    """Returns the rule of Adadelta (Zeiler, 2012)."""
    rho = options["rho"]
    epsilon = options["epsilon"]

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        del step
        squares = slots["accumulated_grad"] * rho + xp.square(gradient) * (1 - rho)
        old_changes = slots["accumulated_delta_var"]
        change = gradient * xp.sqrt(old_changes + epsilon) / xp.sqrt(squares + epsilon)
        new_changes = old_changes * rho + xp.square(change) * (1 - rho)
        return weight - change * rate, {"accumulated_grad": squares, "accumulated_delta_var": new_changes}

    return Rule(("accumulated_grad", "accumulated_delta_var"), update, elementwise=True)


def adagrad(options: Options, xp: Arrays) -> Rule:
    """Returns the rule of Adagrad (Duchi et al., 2011)."""
    epsilon = options["epsilon"]

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        del step
        accumulator = slots["accumulator"] + xp.square(gradient)
        return weight - gradient * rate / xp.sqrt(accumulator + epsilon), {"accumulator": accumulator}

    initial = {"accumulator": options["initial_accumulator_value"]}
    return Rule(("accumulator",), update, elementwise=True, initial=initial)


def adamax(options: Options, xp: Arrays) -> Rule:
    """Returns the rule of Adamax (Kingma and Ba, 2015)."""
    beta_1 = options["beta_1"]
    beta_2 = options["beta_2"]
    epsilon = options["epsilon"]

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        momentum = slots["m"] + (gradient - slots["m"]) * (1 - beta_1)
        norm = xp.maximum(slots["u"] * beta_2, xp.abs(gradient))
        change = momentum * rate / ((norm + epsilon) * (1 - xp.power(beta_1, step)))
        return weight - change, {"m": momentum, "u": norm}

    return Rule(("m", "u"), update, elementwise=True)


def ftrl(options: Options, xp: Arrays) -> Rule:
    """Returns the rule of FTRL-proximal (McMahan et al., 2013)."""
    exponent = -options["learning_rate_power"]
    l1 = options["l1_regularization_strength"]
    l2 = options["l2_regularization_strength"]
    shrinkage = options["l2_shrinkage_regularization_strength"]
    beta = options["beta"]

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        del step
        old = slots["accumulator"]
        accumulator = old + xp.square(gradient)
        old_power = xp.power(old, exponent)
        power = xp.power(accumulator, exponent)
        linear = slots["linear"] + (gradient + weight * (2 * shrinkage)) - (power - old_power) / rate * weight
        quadratic = power / rate + 2 * (l2 + beta / (2 * rate))
        clipped = xp.minimum(xp.maximum(linear, -l1), l1)
        return (clipped - linear) / quadratic, {"accumulator": accumulator, "linear": linear}

    initial = {"accumulator": options["initial_accumulator_value"]}
    return Rule(("accumulator", "linear"), update, elementwise=True, initial=initial)


def lion(options: Options, xp: Arrays) -> Rule:
    """Returns the rule of Lion (Chen et al., 2023)."""
    # Keras rounds these two to float32 before it subtracts them from 1, which shows: 1 - 0.999 then is 1.3e-5 less.
    beta_1 = as_float32(options["beta_1"])
    beta_2 = as_float32(options["beta_2"])

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        del step
        direction = xp.sign(slots["m"] * beta_1 + gradient * (1 - beta_1))
        return weight - direction * rate, {"m": slots["m"] * beta_2 + gradient * (1 - beta_2)}

    return Rule(("m",), update, elementwise=True)


def nadam(options: Options, xp: Arrays) -> Rule:
    """Returns the rule of Nadam (Dozat, 2016)."""
    # Keras rounds these two to float32 before it subtracts them from 1, which shows: 1 - 0.999 then is 1.3e-5 less.
    beta_1 = as_float32(options["beta_1"])
    beta_2 = as_float32(options["beta_2"])
    epsilon = options["epsilon"]

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
        momentum = slots["m"] + (gradient - slots["m"]) * (1 - beta_1)
        square = slots["v"] + (xp.square(gradient) - slots["v"]) * (1 - beta_2)
        now = beta_1 * (1 - 0.5 * xp.power(_NADAM_DECAY, step))
        after = beta_1 * (1 - 0.5 * xp.power(_NADAM_DECAY, step + 1.0))
        product = nadam_product(options, step, xp)
        m_hat = momentum * (after / (1 - product * after)) + gradient * ((1 - now) / (1 - product))
        v_hat = square / (1 - xp.power(beta_2, step))
        return weight - m_hat * rate / (xp.sqrt(v_hat) + epsilon), {"m": momentum, "v": square}

    return Rule(("m", "v"), update, elementwise=True)


def nadam_product(options: Options, step: Tensor, xp: Arrays) -> Tensor:
    """Returns the product of Nadam's momenta of the first steps, which Keras keeps as a variable.

    Args:
      options: of the class.
      step: float32 (), number of factors.
      xp: functions of the arrays.
    """
    numbers = np.arange(1, _NADAM_STEPS + 1, dtype=np.float32)
    logarithms = np.log1p(-0.5 * _NADAM_DECAY ** numbers.astype(np.float64)).astype(np.float32)
    # 1 up to the step and 0 after it: a traced step can't end a loop or a slice.
    is_factor = xp.to_float(xp.greater_equal(step, numbers))
    return xp.power(options["beta_1"], step) * xp.exp(xp.sum(is_factor * logarithms))
