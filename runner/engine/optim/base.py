"""Interface between an optimizer's own module and the code that uses optimizers: `Rule` and `OptimizerEntry`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
      name: as in the paths of `runner.layout.paths`.
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
      update: (gradient, weight, slots, learning rate, step counted from 1) -> (new weight, new slots); all tensors.
      apply: (weight, new slots, learning rate, step counted from 1) -> new weight, if the new weight depends on the
        new slots alone and not on the gradient; None otherwise.
    """

    slots: tuple[str, ...]
    update: Update
    apply: Apply | None = None


@dataclass(frozen=True)
class OptimizerEntry:
    """All that the runner knows of one optimizer; `runner.engine.optim.rules` lists them by name.

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
