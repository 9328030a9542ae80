"""The state of a step of the engine `jax`: variables, slots, moving averages, sums of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from runner.data.base import Array
from runner.engine.base import part_of
from runner.engine.jax.precision import as_float32, at_least_float32
from runner.engine.jax.shards import placed_in_parts
from runner.engine.optim.rules import Slot
from runner.layout.paths import ema_path, is_ema, owner_of, slot_path

T = TypeVar("T")

# Path prefix of a step's gradients so far. Between two steps they mean nothing, and are not saved.
_GRAD_ACCUM = "grad_accum:"


class State(NamedTuple, Generic[T]):
    """A tree with one entry per variable: its array, or its path, sharding or shape.

    Attributes:
      trainable: in the model's order.
      non_trainable: the other weights, such as batch statistics, in the model's order.
      slots: one list per slot name, of the trainable variables that have it.
      ema: moving averages, aligned with `trainable`; empty if the run keeps none.
      grad_accum: sums of the gradients of a step's micro-batches so far; empty if a step has one micro-batch.
    """

    trainable: list[T]
    non_trainable: list[T]
    slots: list[list[T]]
    ema: list[T]
    grad_accum: list[T]


@dataclass(frozen=True)
class StateTree:
    """Canonical paths and shardings of a state's entries, and the kinds of optimizer state, in order."""

    paths: State[str]
    shardings: State[NamedSharding]
    slots: Sequence[Slot]

    def shapes(self, variables: Mapping[str, jax.ShapeDtypeStruct]) -> State[jax.ShapeDtypeStruct]:
        """Returns a state's shapes, with their shardings, given those of the variables as the state holds them.

        Averages and sums of gradients are at least float32; a slot may lack a dim.
        """
        slots: dict[str, tuple[tuple[int, ...], Any]] = {}
        for slot in self.slots:
            for path, dims in slot.dims.items():
                like = variables[path]
                slots[slot_path(slot.name, path)] = tuple(like.shape[dim] for dim in dims), slot.dtype or like.dtype
            for path, own_shape in slot.shapes.items():
                slots[slot_path(slot.name, path)] = own_shape, slot.dtype

        def kind(path: str, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            if path in slots:
                shape, dtype = slots[path]
                return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            is_sum = path.startswith(_GRAD_ACCUM)
            like = variables[owner_of(path.removeprefix(_GRAD_ACCUM))]
            dtype = like.dtype
            if is_sum or is_ema(path):
                dtype = at_least_float32(dtype)
            return jax.ShapeDtypeStruct(tuple(like.shape), dtype, sharding=sharding)

        kinds: State[jax.ShapeDtypeStruct] = jax.tree.map(kind, self.paths, self.shardings)
        return kinds

    def begin(
        self,
        initial: Mapping[str, jax.Array],
        variables: Mapping[str, jax.ShapeDtypeStruct],
        first_slots: Callable[[list[jax.Array]], list[list[jax.Array]]] | None = None,
    ) -> State[jax.Array]:
        """Returns the state at the start of a run, which takes over the initial values.

        Slots have their initial values, or what `first_slots` returns for the trainable variables in float32; averages
        are the variables' own values.
        """
        shapes = self.shapes(variables)
        trainable = [initial[path] for path in self.paths.trainable]
        non_trainable = [initial[path] for path in self.paths.non_trainable]

        def make(weights: list[jax.Array]) -> tuple[list[list[jax.Array]], list[jax.Array], list[jax.Array]]:
            if first_slots is not None:
                slots = first_slots(list(map(as_float32, weights)))
            else:
                slots = []
                by_path = dict(zip(self.paths.trainable, weights, strict=True))
                for slot, kinds in zip(self.slots, shapes.slots, strict=True):
                    slots.append(_first_values(slot, kinds, by_path))
            averages = []
            for weight, kind in zip(weights, shapes.ema, strict=bool(shapes.ema)):
                # A copy: the step donates both, so they must not share memory.
                averages.append(jnp.copy(weight).astype(kind.dtype))
            sums = [jnp.zeros(kind.shape, kind.dtype) for kind in shapes.grad_accum]
            return slots, averages, sums

        shardings = (self.shardings.slots, self.shardings.ema, self.shardings.grad_accum)
        slots, ema, grad_accum = jax.jit(make, out_shardings=shardings)(trainable)
        jax.block_until_ready((slots, ema, grad_accum))
        return State(trainable, non_trainable, slots, ema, grad_accum)

    def place(
        self,
        values: Mapping[str, Array],
        variables: Mapping[str, jax.ShapeDtypeStruct],
        before: State[jax.Array],
    ) -> State[jax.Array]:
        """Puts host arrays on the devices, by shards; see `placed`."""
        state: State[jax.Array] = placed(values, self.paths, self.shapes(variables), before)
        return state

    def by_path(self, state: State[T]) -> dict[str, T]:
        """Returns a state's entries by path, without sums of gradients."""
        paths = jax.tree.leaves(self.paths._replace(grad_accum=[]))
        entries = jax.tree.leaves(state._replace(grad_accum=[]))
        return dict(zip(paths, entries, strict=True))


def _first_values(
    slot: Slot, kinds: Sequence[jax.ShapeDtypeStruct], weights: Mapping[str, jax.Array]
) -> list[jax.Array]:
    values = []
    for path, kind in zip(slot.paths, kinds, strict=True):
        if slot.initial is None:
            values.append(jnp.copy(weights[path]).astype(kind.dtype))
        else:
            values.append(jnp.full(kind.shape, slot.initial, kind.dtype))
    return values


def placed(values: Mapping[str, Array], paths: Any, kinds: Any, before: Any) -> Any:
    """Returns a state's tree with host arrays on the devices, by shards.

    Each array of the present state is released before the new one is made. Sums of gradients have no value, and are 0.
    """

    def place(path: str, like: jax.ShapeDtypeStruct, old: jax.Array) -> jax.Array:
        # Not with the last reference: the caller still holds the old state.
        old.delete()
        if path in values:
            return placed_in_parts(lambda index: part_of(values, path, index), like)
        # One number, broadcast: the host holds no array of the variable's size.
        return placed_in_parts(np.broadcast_to(np.zeros((), like.dtype), like.shape).__getitem__, like)

    return jax.tree.map(place, paths, kinds, before)


def state_tree(
    trainable: Sequence[str],
    non_trainable: Sequence[str],
    shardings: Mapping[str, NamedSharding],
    slots: Sequence[Slot],
    *,
    keeps_ema: bool,
    accumulates: bool,
) -> StateTree:
    """Returns the tree of a model's variables.

    Slots, averages and sums have the sharding of their variable. A slot that lacks a dim has that of the dims that
    remain.
    """
    own = [shardings[path] for path in trainable]
    slot_paths = []
    slot_shardings = []
    for slot in slots:
        slot_paths.append([slot_path(slot.name, path) for path in slot.paths])
        of_slot = [_of_dims(shardings[path], dims) for path, dims in slot.dims.items()]
        # State without dims of a variable is small, and replicated.
        of_slot += [_of_dims(own[0], ()) for _ in slot.shapes]
        slot_shardings.append(of_slot)
    averaged = trainable if keeps_ema else []
    summed = trainable if accumulates else []
    return StateTree(
        paths=State(
            list(trainable),
            list(non_trainable),
            slot_paths,
            ema=list(map(ema_path, averaged)),
            grad_accum=[f"{_GRAD_ACCUM}{path}" for path in summed],
        ),
        shardings=State(
            own,
            [shardings[path] for path in non_trainable],
            slot_shardings,
            ema=own[: len(averaged)],
            grad_accum=own[: len(summed)],
        ),
        slots=slots,
    )


def _of_dims(sharding: NamedSharding, dims: Sequence[int]) -> NamedSharding:
    """Returns the sharding of an array that has some dims of another."""
    spec = sharding.spec
    # JAX's specs may be shorter than an array's rank: the dims after them are not sharded.
    kept = [spec[dim] if dim < len(spec) else None for dim in dims]
    return NamedSharding(sharding.mesh, PartitionSpec(*kept))
