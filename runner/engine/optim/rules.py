"""Update rules as pure functions: old weights, slots and gradients in, new weights and slots out.

The formulas are those of tf_keras 2.21's optimizers, with which `runner.verify.stock` compares them. They are written
out because the stock ones assign a slot and read it back in one step, and DTensor's all-reduce combiner moves such a
read before the assignment: every update is then one step stale. A function that reads all before it writes all has no
such order to lose. Each formula is written once, for any array module that `runner.arrays` knows.

To add an optimizer: its rule, a line in `OPTIMIZERS`, and conf/optimizer/<name>.yaml. A key that no optimizer has yet
also needs a field in `runner.config.schema.OptimizerConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType

from runner import arrays
from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig

# Slot name -> its value for one variable.
Slots = dict[str, Tensor]
# (gradient, weight, slots, learning rate, step counted from 1) -> (new weight, new slots)
Update = Callable[[Tensor, Tensor, Slots, Tensor, Tensor], tuple[Tensor, Slots]]
# (weight, new slots, learning rate, step counted from 1) -> new weight
Apply = Callable[[Tensor, Slots, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Slot:
    """One kind of optimizer state, such as Adam's second moments.

    Attributes:
      dims: path of a trainable variable that has this state -> dims of the variable that the state has, in order. A
        factored moment has all but one.
      initial: every element's value at the start. None: the variable's own initial values.
      shapes: path -> shape of state that no dims of its variable have. Such state is replicated. The path of state of
        the whole optimizer, such as a count, is empty.
      dtype: the dtype of the state; None: that of its variable, in which it is rounded after an update in float32.
    """

    name: str
    dims: Mapping[str, tuple[int, ...]]
    initial: float | None = 0.0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: str | None = None

    @property
    def paths(self) -> list[str]:
        """Paths of the variables that have this state, in order."""
        return [*self.dims, *self.shapes]


def whole_slots(names: Sequence[str], ranks: Mapping[str, int]) -> list[Slot]:
    """Returns slots that have the shapes of all variables, given the variables' numbers of dims by path."""
    dims = {path: tuple(range(rank)) for path, rank in ranks.items()}
    return [Slot(name, dims) for name in names]


@dataclass(frozen=True)
class Rule:
    """Update of one variable by an optimizer, as a pure function.

    Each element's update depends on that element of weight, gradient and slots alone: DTensor updates all variables as
    one vector.

    Attributes:
      slots: names of the optimizer state per variable (Keras calls these slot variables). A slot has the variable's
        shape and sharding.
      apply: if the new weight depends on the new slots alone and not on the gradient; None otherwise.
    """

    slots: tuple[str, ...]
    update: Update
    apply: Apply | None = None


@dataclass(frozen=True)
class OptimizerEntry:
    """All that the runner knows of one optimizer; `OPTIMIZERS` lists them by name.

    Attributes:
      keys: keys of the config group `optimizer` that the rule uses; each must have a value, and others must be null.
      make_rule: (config, functions of the arrays) -> update rule. None: an engine that computes with JAX runs the
        optimizer itself, and no other engine has it.
      keras_class: name of the stock optimizer in `keras.optimizers` with the same formula, for comparison. Its
        arguments have the names of `keys`, and its state in `.keras_classes` those of the rule's slots.
      bug_keys: keys that reproduce a known bug of this optimizer; false by default.
      is_transformation: the optimizer is the Optax transformation that `optimizer._target_` returns.
      is_keras_class: the optimizer is the class of Keras that `optimizer.class_name` names.
    """

    keys: tuple[str, ...] = ()
    make_rule: Callable[[OptimizerConfig, Arrays], Rule] | None = None
    keras_class: str = ""
    bug_keys: tuple[str, ...] = ()
    is_keras_class: bool = False
    is_transformation: bool = False


# TensorFlow's tutorial on DTensor and Keras trains its 784-128-10 network with Adam at 0.01, and so do our figures.
_TUTORIAL_BUILDERS = ("runner.model.mlp.", "runner.model.core.")
_TUTORIAL_RATE = 0.01
# The default of Keras's Adam. At ten times that rate, convolutional networks and transformers often don't learn.
_KERAS_RATE = 0.001


def adam_learning_rate(builder: str) -> float:
    """Returns the default learning rate of Adam for a model, which conf/optimizer/adam.yaml refers to."""
    if str(builder).startswith(_TUTORIAL_BUILDERS):
        return _TUTORIAL_RATE
    return _KERAS_RATE


def _adam(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Returns Adam (Kingma and Ba, 2015), or AdamW with decoupled decay (Loshchilov and Hutter, 2019)."""
    beta_1 = float(config.beta_1 or 0)
    beta_2 = float(config.beta_2 or 0)
    epsilon = float(config.epsilon or 0)
    weight_decay = config.weight_decay or 0.0

    def apply(weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Tensor:
        if config.frozen_step:
            # 1, whatever the step. Computed from the step it is a tensor of the same dtype and layout, and the formula
            # below needs no second form for a Python number.
            step = step * 0 + 1
        bias_corrected_rate = rate * xp.sqrt(1 - xp.power(beta_2, step)) / (1 - xp.power(beta_1, step))
        return weight - slots["m"] * bias_corrected_rate / (xp.sqrt(slots["v"]) + epsilon)

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        if weight_decay:
            weight = weight - weight * (weight_decay * rate)
        new_slots = {
            "m": slots["m"] + (gradient - slots["m"]) * (1 - beta_1),
            "v": slots["v"] + (xp.square(gradient) - slots["v"]) * (1 - beta_2),
        }
        return apply(weight, new_slots, rate, step), new_slots

    return Rule(("m", "v"), update, apply=apply)


def _sgd(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Returns stochastic gradient descent: plain, with momentum, or with Nesterov momentum."""
    del xp
    momentum = config.momentum or 0.0

    def update_plain(
        gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        del slots, step
        return weight - gradient * rate, {}

    def update_with_momentum(
        gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        del step
        velocity = slots["momentum"] * momentum - gradient * rate
        change = velocity
        if config.nesterov:
            change = velocity * momentum - gradient * rate
        return weight + change, {"momentum": velocity}

    # Without momentum there is no state to keep in memory and in checkpoints.
    if not momentum:
        return Rule((), update_plain)
    return Rule(("momentum",), update_with_momentum)


def _rmsprop(config: OptimizerConfig, xp: Arrays) -> Rule:
    """Returns RMSprop (Tieleman and Hinton, 2012), or centered: scaled by the variance (Graves, 2013)."""
    rho = float(config.rho or 0)
    momentum = config.momentum or 0.0
    epsilon = float(config.epsilon or 0)

    def update(gradient: Tensor, weight: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> tuple[Tensor, Slots]:
        del step
        new_slots = {"velocity": slots["velocity"] * rho + xp.square(gradient) * (1 - rho)}
        denominator = new_slots["velocity"] + epsilon
        if config.centered:
            new_slots["average"] = slots["average"] * rho + gradient * (1 - rho)
            denominator = new_slots["velocity"] - xp.square(new_slots["average"]) + epsilon
        change = gradient * rate * xp.rsqrt(denominator)
        if momentum:
            change = slots["momentum"] * momentum + change
            new_slots["momentum"] = change
        return weight - change, new_slots

    # Only slots that are used take memory and space in checkpoints.
    slot_names = ["velocity"]
    if config.centered:
        slot_names.append("average")
    if momentum:
        slot_names.append("momentum")
    return Rule(tuple(slot_names), update)


_ADAM = OptimizerEntry(
    keys=("beta_1", "beta_2", "epsilon"),
    make_rule=_adam,
    keras_class="Adam",
    bug_keys=("frozen_step", "reread_slots"),
)
# `optimizer.name` -> entry.
OPTIMIZERS: Mapping[str, OptimizerEntry] = {
    "adam": _ADAM,
    "adamw": replace(_ADAM, keys=(*_ADAM.keys, "weight_decay"), keras_class="AdamW", bug_keys=()),
    "sgd": OptimizerEntry(keys=("momentum", "nesterov"), make_rule=_sgd, keras_class="SGD"),
    "rmsprop": OptimizerEntry(
        keys=("rho", "momentum", "epsilon", "centered"), make_rule=_rmsprop, keras_class="RMSprop"
    ),
    "keras": OptimizerEntry(is_keras_class=True),
    "optax": OptimizerEntry(is_transformation=True),
}


def make_rule(config: OptimizerConfig, ops: ModuleType) -> Rule:
    """Returns the update rule of a checked config."""
    make = OPTIMIZERS[config.name].make_rule
    assert make is not None, "checked: only engines with JAX get an optimizer without a rule"
    return make(config, arrays.of(ops))


def average(decay: float, old: Tensor, weight: Tensor, step: Tensor, ops: ModuleType) -> Tensor:
    """Returns the new exponential moving average (EMA), by Keras 3's formula; at step 0 it becomes the weight."""
    kept_share = arrays.of(ops).to_float(step > 0) * decay
    return old * kept_share + weight * (1 - kept_share)
