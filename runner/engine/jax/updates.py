"""Updates of all trainable variables: by our rules, or by an optimizer of Keras 3 itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import Mesh

from runner.config.schema import OptimizerConfig
from runner.engine.jax import private
from runner.engine.jax.partitioning import sharding
from runner.engine.mappings import subset
from runner.engine.optim import groups, rules, transformation
from runner.engine.optim.groups import Settings
from runner.engine.optim.keras_classes import keras_arguments, keras_slots, options_checked
from runner.engine.optim.rules import OPTIMIZERS, Slot, whole_slots
from runner.engine.optim.schedules import is_constant

# Keras's own, added to a norm that may be 0.
_EPSILON = 1e-7
Values = list[jax.Array]
# The trainable variables by path, which need no values.
Variables = Mapping[str, keras.Variable]
# (number of the trainable variable, its new value) -> its value after its constraint
Constrain = Callable[[int, jax.Array], jax.Array]


@dataclass(frozen=True)
class Before:
    """What an update is computed from: float32 arrays of the trainable variables, and the steps `done` before."""

    gradients: Values
    weights: Values
    slots: list[Values]
    rate: jax.Array
    done: jax.Array
    constrain: Constrain


class UpdateRule(ABC):
    """The optimizer's update as a pure function of all trainable variables.

    Attributes:
      slots: kinds of state that it has. Several may have one name, for different variables.
      first_slots: returns the first slots from the trainable variables; None: they are as `Slot.initial` says.
    """

    slots: Sequence[Slot]
    first_slots: Callable[[Values], list[Values]] | None = None

    @abstractmethod
    def apply(self, before: Before) -> tuple[Values, list[Values]]:
        """Returns the new weights, after their constraints, and the new slots."""


def make(config: OptimizerConfig, paths: Sequence[str], variables: Sequence[keras.Variable], mesh: Mesh) -> UpdateRule:
    """Returns the update of a checked config; raises ConfigError if a parameter group matches no variable."""
    by_path = dict(zip(paths, variables, strict=True))
    settings = groups.settings(config, paths)
    if OPTIMIZERS[config.name].is_keras_class:
        return KerasUpdate(config, by_path, settings, mesh)
    if OPTIMIZERS[config.name].is_transformation:
        return TransformationUpdate(config, by_path, settings)
    return OwnUpdate(config, by_path, settings)


def _ranks(variables: Mapping[str, keras.Variable]) -> dict[str, int]:
    return {path: len(variable.shape) for path, variable in variables.items()}


class OwnUpdate(UpdateRule):
    """Our rule, variable by variable."""

    def __init__(self, config: OptimizerConfig, variables: Variables, settings: Mapping[str, Settings]) -> None:
        self._settings = settings
        self._rule = rules.make_rule(config, jnp)
        self._rule_without_decay = rules.make_rule(groups.without_decay(config), jnp)
        self.slots = whole_slots(self._rule.slots, _ranks(variables))

    def apply(self, before: Before) -> tuple[Values, list[Values]]:
        """Updates each variable by the rule, as its parameter groups say."""
        new_weights = []
        new_slots: list[Values] = [[] for _ in before.slots]
        names = self._rule.slots
        # Rules count steps from 1, as bias corrections need.
        step = before.done + 1.0
        for index, own in enumerate(self._settings.values()):
            rule = self._rule
            if not own.decays:
                rule = self._rule_without_decay
            rate = before.rate
            # Without a factor there is no product: `rate * 1.0` would be one more operation per variable.
            if own.rate != 1.0:
                rate = rate * own.rate
            old_slots = {name: values[index] for name, values in zip(names, before.slots, strict=True)}
            new_weight, updated = rule.update(before.gradients[index], before.weights[index], old_slots, rate, step)
            new_weights.append(before.constrain(index, new_weight))
            for name, values in zip(names, new_slots, strict=True):
                values.append(updated[name])
        return new_weights, new_slots


class KerasUpdate(UpdateRule):
    """Optimizers of Keras 3: one per learning rate, as Keras has it per optimizer."""

    def __init__(
        self, config: OptimizerConfig, variables: Variables, settings: Mapping[str, Settings], mesh: Mesh
    ) -> None:
        self.slots = []
        # Each with the numbers of its variables and its factor of the rate.
        self._parts: list[tuple[_KerasOptimizer, list[int], float]] = []
        numbers = dict(zip(variables, range(len(variables)), strict=True))
        for rate, paths in groups.parts(settings).items():
            own = subset(variables, paths)
            excluded = [own[path] for path in paths if not settings[path].decays]
            optimizer = _KerasOptimizer(config, own, excluded, mesh)
            self.slots += optimizer.slots
            self._parts.append((optimizer, [numbers[path] for path in paths], rate))

    def apply(self, before: Before) -> tuple[Values, list[Values]]:
        """Updates all variables of an optimizer at once; Keras applies the constraints itself."""
        new_weights = list(before.weights)
        new_slots: list[Values] = []
        for optimizer, numbers, factor in self._parts:
            # The slots of all parts are in one list, part after part, as `__init__` has added them.
            slots = before.slots[len(new_slots) : len(new_slots) + len(optimizer.slots)]
            weights = [before.weights[number] for number in numbers]
            gradients = [before.gradients[number] for number in numbers]
            rate = before.rate
            # A factor of 1 adds no operation: without groups, the program is the one that it was.
            if factor != 1.0:
                rate = before.rate * factor
            updated, updated_slots = optimizer.apply(gradients, weights, slots, rate, before.done)
            for number, weight in zip(numbers, updated, strict=True):
                new_weights[number] = weight
            new_slots += updated_slots
        return new_weights, new_slots


class TransformationUpdate(UpdateRule):
    """A transformation of Optax. Its updates are multiplied by the learning rate."""

    def __init__(self, config: OptimizerConfig, variables: Variables, settings: Mapping[str, Settings]) -> None:
        self.transformation = transformation.make(config)
        self._settings = settings
        self._paths = list(variables)
        shapes = {}
        for path, variable in variables.items():
            shapes[path] = jax.ShapeDtypeStruct(tuple(variable.shape), jnp.float32)
        # By shapes alone, as the state is too large for one device before it is sharded.
        first = jax.eval_shape(self.transformation.init, shapes)
        self._structure = jax.tree.structure(first)
        self.slots, self._places = slots_of_transformation(first, shapes)
        self.first_slots = self._first_slots

    def _first_slots(self, weights: Values) -> list[Values]:
        return self._by_slot(self.transformation.init(dict(zip(self._paths, weights, strict=True))))

    def _by_slot(self, state: Any) -> list[Values]:
        leaves = list(map(jnp.asarray, jax.tree.leaves(state)))
        slots = []
        for places in self._places:
            slots.append([leaves[place] for place in places])
        return slots

    def apply(self, before: Before) -> tuple[Values, list[Values]]:
        """Adds the transformed gradients, multiplied by the rate, to the weights."""
        leaves = dict(zip(chain(*self._places), chain(*before.slots), strict=True))
        state = jax.tree.unflatten(self._structure, [leaves[place] for place in sorted(leaves)])
        by_path = dict(zip(self._paths, before.weights, strict=True))
        gradients = dict(zip(self._paths, before.gradients, strict=True))
        changes, state = self.transformation.update(gradients, state, by_path)
        new_weights = []
        for index, (path, weight) in enumerate(by_path.items()):
            own_rate = before.rate * self._settings[path].rate
            # Optax's convention: updates are added.
            new_weights.append(before.constrain(index, weight + changes[path].astype(weight.dtype) * own_rate))
        return new_weights, self._by_slot(state)


def slots_of_transformation(
    state: Any, variables: Mapping[str, jax.ShapeDtypeStruct]
) -> tuple[list[Slot], list[list[int]]]:
    """Returns the state of a transformation by kinds, and for each the numbers of its arrays among the tree's leaves.

    An array belongs to the variable whose path is a key of the tree on the way to it. It is sharded as the variable if
    it has its shape. Any other array, such as a factored moment, is replicated.
    """
    found: dict[tuple[str, str], list[tuple[int, str, tuple[int, ...]]]] = {}
    for number, (keys, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(state)):
        # Keys of mappings, names of named tuples and indices of tuples have no attribute in common.
        names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in keys]
        owner = next((name for name in names if name in variables), "")
        name = ".".join(part.replace("/", "_") for part in names if part != owner)
        found.setdefault((name, leaf.dtype.name), []).append((number, owner, tuple(leaf.shape)))
    slots = []
    places = []
    for (name, dtype), leaves in found.items():
        dims = {}
        shapes = {}
        sharded = []
        replicated = []
        for number, owner, shape in leaves:
            if owner and shape == variables[owner].shape:
                dims[owner] = tuple(range(len(shape)))
                sharded.append(number)
            else:
                shapes[owner] = shape
                replicated.append(number)
        slots.append(Slot(name, dims, 0.0, shapes, dtype))
        places.append(sharded + replicated)
    return slots, places


class _KerasOptimizer:
    """An optimizer of Keras 3, by its `stateless_apply`; step count and learning rate are computed, and not stored."""

    def __init__(
        self,
        config: OptimizerConfig,
        variables: Mapping[str, keras.Variable],
        excluded: Sequence[keras.Variable],
        mesh: Mesh,
    ) -> None:
        self._variables = list(variables.values())
        self._config = config
        # Of the step that is traced; Keras calls for it, as it does with schedules.
        self._rate: Any = None
        arguments = keras_arguments(config)
        # As stock Keras has a number or a schedule: Adafactor limits the rate only if it is a number.
        arguments["learning_rate"] = config.learning_rate
        if not is_constant(config.schedule):
            arguments["learning_rate"] = lambda: self._rate
        make = DividedMuon if config.class_name == "Muon" else getattr(keras.optimizers, config.class_name or "")
        with options_checked(config):
            self._optimizer = make(**arguments)
            if config.class_name == "Muon":
                self._optimizer.mesh = mesh
            if excluded:
                self._optimizer.exclude_from_weight_decay(var_list=excluded)
            private.build_abstractly(self._optimizer, self._variables)
        self.slots: list[Slot] = []
        self._slot_variables: list[list[keras.Variable]] = []
        for slot, slot_variables in keras_slots(config, self._optimizer, _ranks(variables)):
            self.slots.append(slot)
            self._slot_variables.append(list(slot_variables.values()))

    def apply(
        self, gradients: Values, weights: Values, slots: list[Values], rate: jax.Array, done: jax.Array
    ) -> tuple[Values, list[Values]]:
        optimizer = self._optimizer
        values: dict[int, jax.Array] = {id(optimizer.iterations): done.astype(optimizer.iterations.dtype)}
        if isinstance(optimizer._learning_rate, keras.Variable):
            values[id(optimizer._learning_rate)] = rate
        self._rate = rate
        for variables, slot_values in zip(self._slot_variables, slots, strict=True):
            for variable, value in zip(variables, slot_values, strict=True):
                values[id(variable)] = value
        # What is left are Keras's placeholders for state that a variable does not have.
        in_order = [values.get(id(variable), jnp.zeros(variable.shape)) for variable in optimizer.variables]
        with private.in_float32([*self._variables, *optimizer.variables]), options_checked(self._config):
            new_weights, new_in_order = optimizer.stateless_apply(in_order, gradients, weights)
        new_values = dict(zip(map(id, optimizer.variables), new_in_order, strict=True))
        new_slots = []
        for variables in self._slot_variables:
            new_slots.append([new_values[id(variable)] for variable in variables])
        return list(new_weights), new_slots


class DividedMuon(keras.optimizers.Muon):  # type: ignore[misc]
    """Keras's Muon on a mesh.

    Keras's class as it is has each device orthogonalize every matrix that it holds whole, which is most of the cost
    of a step: with data parallelism alone, eight devices do the same work eight times. Here each device computes the
    columns and rows that are its own. The result differs by rounding only, as sums over columns are sums of parts.
    The mesh is set after construction, as Keras's arguments are what is recorded.
    """

    mesh: Mesh | None = None

    def zeropower_via_newtonschulz5(self, x: jax.Array, steps: int) -> jax.Array:
        """Returns the nearest orthogonal matrix, by as many steps of Newton and Schulz's iteration."""
        if x.shape[-2] > x.shape[-1]:
            return jnp.swapaxes(self.zeropower_via_newtonschulz5(jnp.swapaxes(x, -1, -2), steps), -1, -2)
        # The shorter dim is that of the rows: the square matrix of products is as small as it can be.
        x = self._divide(x, x.ndim - 1)
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + _EPSILON)
        for _ in range(steps):
            products = self._divide(x @ jnp.swapaxes(x, -1, -2), x.ndim - 2)
            polynomial = self._divide(self.muon_b * products + self.muon_c * products @ products, x.ndim - 2)
            x = self._divide(self.muon_a * x + polynomial @ x, x.ndim - 1)
        return x

    def _divide(self, x: jax.Array, dim: int) -> jax.Array:
        """Shards the leading dim of several matrices, or else a dim of the matrices, if all axes divide it."""
        if self.mesh is None or self.mesh.size == 1:
            return x
        spec: list[tuple[str, ...] | None] = [None] * x.ndim
        candidates = [0, dim] if x.ndim > 2 else [dim]
        for candidate in candidates:
            if x.shape[candidate] % self.mesh.size == 0:
                spec[candidate] = self.mesh.axis_names
                break
        return lax.with_sharding_constraint(x, sharding(self.mesh, spec))
