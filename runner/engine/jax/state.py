"""The state of a step of the engine `jax`: variables, slots, moving averages, sums of gradients.

A state is a tree of arrays. Two trees of its structure have the canonical path of each array, and its shape, dtype and
sharding.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct
from jax.sharding import NamedSharding, PartitionSpec

from runner.data.base import Array
from runner.engine.base import part_of
from runner.engine.jax.precision import as_float32, at_least_float32
from runner.engine.jax.shards import placed_in_parts
from runner.engine.optim.rules import Slot
from runner.layout.paths import ema_path, slot_path

T = TypeVar("T")

# Bytes of a released array after which the C library is asked to return freed memory, see `_trim_heap`.
_LARGE = 1 << 20
# Path prefix of a step's gradients so far. Between two steps they mean nothing, and are not saved.
_GRAD_ACCUM = "grad_accum:"


class State(NamedTuple, Generic[T]):
    """A tree with one entry per variable, in the model's order: its array, or its path, sharding or shape.

    Attributes:
      slots: one list per slot name, of the trainable variables that have it.
      ema: moving averages, aligned with `trainable`; empty if the run keeps none.
      grad_accum: sums of the gradients of a step's micro-batches so far; empty if a step has one micro-batch.
    """

    trainable: list[T]
    non_trainable: list[T]
    slots: list[list[T]]
    ema: list[T]
    grad_accum: list[T]


def trees(
    trainable: Sequence[str],
    non_trainable: Sequence[str],
    variables: Mapping[str, ShapeDtypeStruct],
    slots: Sequence[Slot],
    *,
    keeps_ema: bool,
    accumulates: bool,
) -> tuple[State[str], State[ShapeDtypeStruct]]:
    """Returns the paths of a state's arrays, and their shapes with dtypes and shardings.

    Slots, averages and sums have the sharding of their variable. A slot that lacks a dim has that of the dims that
    remain. Averages and sums of gradients are at least float32. `variables` are the stored shapes by path.
    """
    own = [variables[path] for path in trainable]
    slot_paths = []
    slot_kinds = []
    for slot in slots:
        kinds = []
        for path, dims in slot.dims.items():
            like = variables[path]
            shape = tuple(like.shape[dim] for dim in dims)
            kinds.append(ShapeDtypeStruct(shape, slot.dtype or like.dtype, sharding=_of_dims(like, dims)))
        for shape in slot.shapes.values():
            # State without dims of a variable is small, and replicated.
            kinds.append(ShapeDtypeStruct(shape, slot.dtype, sharding=_of_dims(own[0], ())))
        slot_paths.append([slot_path(slot.name, path) for path in slot.paths])
        slot_kinds.append(kinds)
    wide = [ShapeDtypeStruct(kind.shape, at_least_float32(kind.dtype), sharding=kind.sharding) for kind in own]
    averaged = trainable if keeps_ema else []
    summed = trainable if accumulates else []
    paths = State(
        list(trainable),
        list(non_trainable),
        slot_paths,
        ema=list(map(ema_path, averaged)),
        grad_accum=[f"{_GRAD_ACCUM}{path}" for path in summed],
    )
    others = [variables[path] for path in non_trainable]
    return paths, State(own, others, slot_kinds, ema=wide[: len(averaged)], grad_accum=wide[: len(summed)])


def _of_dims(like: ShapeDtypeStruct, dims: Sequence[int]) -> NamedSharding:
    # JAX's specs may be shorter than an array's rank: the dims after them are not sharded.
    spec = [*like.sharding.spec, *[None] * len(like.shape)]
    kept = [spec[dim] for dim in dims]
    return NamedSharding(like.sharding.mesh, PartitionSpec(*kept))


def shardings(kinds: Any) -> Any:
    """Returns the shardings of a state's arrays."""
    return jax.tree.map(lambda kind: kind.sharding, kinds)


def by_path(paths: Any, state: Any) -> dict[str, Any]:
    """Returns a state's entries by path, without sums of gradients."""
    entries = dict(zip(jax.tree.leaves(paths), jax.tree.leaves(state), strict=True))
    return {path: entry for path, entry in entries.items() if not path.startswith(_GRAD_ACCUM)}


def begin(
    initial: Mapping[str, jax.Array],
    paths: State[str],
    kinds: State[ShapeDtypeStruct],
    slots: Sequence[Slot],
    first_slots: Callable[[list[jax.Array]], list[list[jax.Array]]] | None = None,
) -> State[jax.Array]:
    """Returns the state at the start of a run, which takes over the initial values.

    Slots have their initial values, or what `first_slots` returns for the trainable variables in float32; averages are
    the variables' own values.
    """
    trainable = [initial[path] for path in paths.trainable]
    non_trainable = [initial[path] for path in paths.non_trainable]

    def make(weights: list[jax.Array]) -> tuple[list[list[jax.Array]], list[jax.Array], list[jax.Array]]:
        if first_slots is not None:
            made = first_slots(list(map(as_float32, weights)))
        else:
            by_weight = dict(zip(paths.trainable, weights, strict=True))
            made = [_first_values(slot, own, by_weight) for slot, own in zip(slots, kinds.slots, strict=True)]
        averages = []
        for weight, kind in zip(weights, kinds.ema, strict=bool(kinds.ema)):
            # A copy: the step donates both, so they must not share memory.
            averages.append(jnp.copy(weight).astype(kind.dtype))
        sums = [jnp.zeros(kind.shape, kind.dtype) for kind in kinds.grad_accum]
        return made, averages, sums

    results = shardings((kinds.slots, kinds.ema, kinds.grad_accum))
    made, ema, grad_accum = jax.block_until_ready(jax.jit(make, out_shardings=results)(trainable))
    return State(trainable, non_trainable, made, ema, grad_accum)


def _first_values(slot: Slot, kinds: Sequence[ShapeDtypeStruct], weights: Mapping[str, jax.Array]) -> list[jax.Array]:
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

    def place(path: str, like: ShapeDtypeStruct, old: jax.Array) -> jax.Array:
        # Not with the last reference: the caller still holds the old state.
        old.delete()
        if old.nbytes >= _LARGE:
            _trim_heap()
        if path in values:
            return placed_in_parts(lambda index: part_of(values, path, index), like)
        # One number, broadcast: the host holds no array of the variable's size.
        return placed_in_parts(np.broadcast_to(np.zeros((), like.dtype), like.shape).__getitem__, like)

    return jax.tree.map(place, paths, kinds, before)


def _trim_heap() -> None:
    """Returns freed memory to the system.

    After a few large blocks were freed, glibc allocates blocks of up to 32 MiB on its heap and keeps freed ones there
    (mallopt(3), M_MMAP_THRESHOLD): new arrays of other sizes then add to the freed ones, and a load takes twice the
    memory of the state.
    """
    # `CDLL(None)` is this process, which has the C library loaded; only glibc has the function.
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
