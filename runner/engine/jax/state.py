"""The state of a step of the engine `jax`.

Variables, slots, moving averages, sums of gradients.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from runner.data.base import Array
from runner.engine.base import part_of
from runner.engine.jax.precision import as_float32, at_least_float32
from runner.engine.jax.shards import placed_in_parts
from runner.engine.optim.base import Slot
from runner.layout.paths import (
    ema_path,
    is_ema,
    owner_of,
    slot_path,
)

T = TypeVar("T")

# Bytes of released arrays after which the C library is asked to return freed memory to the system. It keeps freed
# blocks of up to 32 MiB (see `give_back`), and the old arrays would add to the new ones.
_MOST_FREED = 32 << 20
# Path prefix of a step's gradients so far. Between two steps they mean nothing, and are not saved.
_GRAD_ACCUM = "grad_accum:"


class State(NamedTuple, Generic[T]):
    """A tree with one entry per variable: its array, or its path, sharding or shape.

    Attributes:
      trainable: trainable variables, in the model's order.
      non_trainable: the other weights, such as batch statistics, in the model's order.
      slots: one list per slot name, of the trainable variables that have it.
      ema: moving averages of the trainable variables, aligned with them; empty if the run keeps none.
      grad_accum: sums of the gradients of a step's micro-batches so far, aligned with `trainable`; empty if a step has
        one micro-batch.
    """

    trainable: list[T]
    non_trainable: list[T]
    slots: list[list[T]]
    ema: list[T]
    grad_accum: list[T]


@dataclass(frozen=True)
class StateTree:
    """Paths and shardings of a state's entries.

    Attributes:
      paths: canonical paths, those of `Engine.state`.
      shardings: in a tree of the same structure.
      slots: kinds of optimizer state, in the order of `paths.slots`.
    """

    paths: State[str]
    shardings: State[NamedSharding]
    slots: Sequence[Slot]

    def shapes(self, variables: Mapping[str, jax.ShapeDtypeStruct]) -> State[jax.ShapeDtypeStruct]:
        """Returns a state's shapes, with their shardings.

        Args:
          variables: shape and dtype of each of the model's variables by path, as the state holds it. Slots, averages
            and sums have those of their variable, except that averages and sums of gradients are at least float32, and
            that a slot may lack a dim.
        """
        dims_of_slots = self._dims_of_slots()
        shapes_of_slots, dtypes_of_slots = self._own_kinds()

        def shape(path: str, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            if path in shapes_of_slots:
                return jax.ShapeDtypeStruct(shapes_of_slots[path], dtypes_of_slots[path], sharding=sharding)
            is_sum = path.startswith(_GRAD_ACCUM)
            like = variables[owner_of(path.removeprefix(_GRAD_ACCUM))]
            dtype = like.dtype
            if is_sum or is_ema(path):
                dtype = at_least_float32(dtype)
            dtype = dtypes_of_slots.get(path, dtype)
            dims = dims_of_slots.get(path, range(len(like.shape)))
            return jax.ShapeDtypeStruct(tuple(like.shape[dim] for dim in dims), dtype, sharding=sharding)

        shapes: State[jax.ShapeDtypeStruct] = jax.tree.map(shape, self.paths, self.shardings)
        return shapes

    def _dims_of_slots(self) -> dict[str, tuple[int, ...]]:
        """Returns path of a slot -> the dims of its variable that it has."""
        dims = {}
        for slot in self.slots:
            for path, dims_of_slot in slot.dims.items():
                dims[slot_path(slot.name, path)] = dims_of_slot
        return dims

    def _own_kinds(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Returns path of a slot -> its shape, if no dims of a variable have it; and -> its dtype, if it has one."""
        shapes = {}
        dtypes = {}
        for slot in self.slots:
            for path in slot.paths:
                if slot.dtype is not None:
                    dtypes[slot_path(slot.name, path)] = slot.dtype
            for path, shape in slot.shapes.items():
                shapes[slot_path(slot.name, path)] = shape
        return shapes, dtypes

    def begin(
        self,
        initial: Mapping[str, jax.Array],
        variables: Mapping[str, jax.ShapeDtypeStruct],
        first_slots: Callable[[list[jax.Array]], list[list[jax.Array]]] | None = None,
    ) -> State[jax.Array]:
        """Returns the state at the start of a run.

        Slots have their initial values, averages are the variables' own values.

        Args:
          first_slots: returns the first slots from the trainable variables, float32, where they are more than their
            `initial` says.
        """
        shapes = self.shapes(variables)
        trainable = [initial[path] for path in self.paths.trainable]
        non_trainable = [initial[path] for path in self.paths.non_trainable]
        copied = self._copied()
        if first_slots is not None:
            copied = self.paths.trainable
        weights = {path: initial[path] for path in copied}

        def make(weights: Mapping[str, jax.Array]) -> tuple[list[list[jax.Array]], list[jax.Array], list[jax.Array]]:
            slots = []
            if first_slots is not None:
                slots = first_slots([as_float32(weights[path]) for path in self.paths.trainable])
            for slot, kinds in zip(self.slots, shapes.slots, strict=True):
                if first_slots is not None:
                    break
                values = []
                for path, kind in zip(slot.paths, kinds, strict=True):
                    if slot.initial is None:
                        values.append(jnp.copy(weights[path]).astype(kind.dtype))
                    else:
                        values.append(jnp.full(kind.shape, slot.initial, kind.dtype))
                slots.append(values)
            averages = []
            for path, kind in zip(self.paths.trainable, shapes.ema, strict=bool(shapes.ema)):
                # A copy: the step donates both, so they must not share memory.
                averages.append(jnp.copy(weights[path]).astype(kind.dtype))
            sums = [jnp.zeros(kind.shape, kind.dtype) for kind in shapes.grad_accum]
            return slots, averages, sums

        shardings = (self.shardings.slots, self.shardings.ema, self.shardings.grad_accum)
        slots, ema, grad_accum = jax.jit(make, out_shardings=shardings)(weights)
        jax.block_until_ready((slots, ema, grad_accum))
        return State(trainable, non_trainable, slots, ema, grad_accum)

    def _copied(self) -> list[str]:
        """Returns the paths of the variables whose values are copied at the start of a run."""
        if self.paths.ema or any(slot.initial is None for slot in self.slots):
            return self.paths.trainable
        return []

    def place(
        self,
        values: Mapping[str, Array],
        variables: Mapping[str, jax.ShapeDtypeStruct],
        before: State[jax.Array],
    ) -> State[jax.Array]:
        """Puts host arrays on the devices, by shards.

        An entry without a value gets that of a run's start: a slot its initial value, averages and sums zero.
        """
        released = _Released()
        initial_of_slots = {}
        for slot in self.slots:
            for path in slot.paths:
                initial_of_slots[slot_path(slot.name, path)] = slot.initial

        def placed(path: str, like: jax.ShapeDtypeStruct, old: jax.Array) -> jax.Array:
            released.add(old)
            if path in values:
                return placed_in_parts(lambda index: part_of(values, path, index), like)
            initial = initial_of_slots.get(path, 0.0)
            if initial is None:
                return placed_in_parts(lambda index: part_of(values, owner_of(path), index), like)
            # One number, broadcast: the host holds no array of the variable's size.
            filled = np.broadcast_to(np.full((), initial, like.dtype), like.shape)
            return placed_in_parts(filled.__getitem__, like)

        state: State[jax.Array] = jax.tree.map(placed, self.paths, self.shapes(variables), before)
        return state

    def by_path(self, state: State[T]) -> dict[str, T]:
        """Returns a state's entries by path, without sums of gradients."""
        paths = jax.tree.leaves(self.paths._replace(grad_accum=[]))
        entries = jax.tree.leaves(state._replace(grad_accum=[]))
        return dict(zip(paths, entries, strict=True))


class _Released:
    """The old arrays of a state, each released before the one that replaces it is made."""

    def __init__(self) -> None:
        self._freed = 0

    def add(self, old: jax.Array) -> None:
        """Releases an array, and now and then returns freed memory to the system."""
        # Released at once and not with the last reference: the caller still holds the old state.
        self._freed += old.nbytes
        old.delete()
        if self._freed >= _MOST_FREED:
            give_back()
            self._freed = 0


def placed_values(
    values: Mapping[str, Array], kinds: Mapping[str, jax.ShapeDtypeStruct], before: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Puts all arrays of a state without structure on the devices, as `StateTree.place` does."""
    released = _Released()
    placed = {}
    for path, kind in kinds.items():
        released.add(before[path])
        placed[path] = placed_in_parts(_part_reader(values, path), kind)
    return placed


def _part_reader(values: Mapping[str, Array], path: str) -> Callable[[tuple[slice, ...]], Array]:
    return lambda index: part_of(values, path, index)


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
    ema_paths: list[str] = []
    ema_shardings: list[NamedSharding] = []
    grad_accum_paths: list[str] = []
    grad_accum_shardings: list[NamedSharding] = []
    trainable_shardings = [shardings[path] for path in trainable]
    if keeps_ema:
        ema_paths = list(map(ema_path, trainable))
        ema_shardings = trainable_shardings
    if accumulates:
        grad_accum_paths = [f"{_GRAD_ACCUM}{path}" for path in trainable]
        grad_accum_shardings = trainable_shardings
    slot_paths = []
    slot_shardings = []
    for slot in slots:
        slot_paths.append([slot_path(slot.name, path) for path in slot.paths])
        of_slot = [_of_dims(shardings[path], dims) for path, dims in slot.dims.items()]
        # State without dims of a variable is small, and replicated.
        of_slot += [_of_dims(trainable_shardings[0], ()) for _ in slot.shapes]
        slot_shardings.append(of_slot)
    return StateTree(
        paths=State(
            trainable=list(trainable),
            non_trainable=list(non_trainable),
            slots=slot_paths,
            ema=ema_paths,
            grad_accum=grad_accum_paths,
        ),
        shardings=State(
            trainable=trainable_shardings,
            non_trainable=[shardings[path] for path in non_trainable],
            slots=slot_shardings,
            ema=ema_shardings,
            grad_accum=grad_accum_shardings,
        ),
        slots=slots,
    )


def _of_dims(sharding: NamedSharding, dims: Sequence[int]) -> NamedSharding:
    """Returns the sharding of an array that has some dims of another."""
    spec = sharding.spec
    # JAX's specs may be shorter than an array's rank: the dims after them are not sharded.
    kept = [spec[dim] if dim < len(spec) else None for dim in dims]
    return NamedSharding(sharding.mesh, PartitionSpec(*kept))


@cache
def _trim() -> object:
    """Returns glibc's `malloc_trim`; None with another C library."""
    # `CDLL(None)` is this process, which has the C library loaded.
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back() -> None:
    """Returns freed memory to the system.

    After a few large blocks were freed, glibc allocates blocks of up to 32 MiB on its heap and keeps freed ones there
    (mallopt(3), M_MMAP_THRESHOLD): new arrays of other sizes then add to the freed ones.
    """
    trim = _trim()
    if callable(trim):
        trim(0)
