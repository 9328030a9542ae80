"""The state of a step of the engine `jax`.

Variables, slots, moving averages, sums of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from runner.data.base import Array
from runner.engine.base import part_of
from runner.engine.jax.precision import at_least_float32
from runner.engine.jax.shards import placed_in_parts
from runner.host import heap
from runner.optim.paths import ema_path, is_ema, owner_of, slot_path

T = TypeVar("T")

# Bytes of released arrays after which the C library is asked to return freed memory to the system. It keeps freed
# blocks of up to 32 MiB (see `runner.host.heap`), and the old arrays would add to the new ones.
_MOST_FREED = 32 << 20
# Path prefix of a step's gradients so far. Between two steps they mean nothing, and are not saved.
_GRAD_ACCUM = "grad_accum:"


class State(NamedTuple, Generic[T]):
    """A tree with one entry per variable: its array, or its path, sharding or shape.

    Attributes:
      trainable: trainable variables, in the model's order.
      non_trainable: the other weights, such as batch statistics, in the model's order.
      slots: one list per slot name, each aligned with `trainable`.
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
    """

    paths: State[str]
    shardings: State[NamedSharding]

    def shapes(self, variables: Mapping[str, jax.ShapeDtypeStruct]) -> State[jax.ShapeDtypeStruct]:
        """Returns a state's shapes, with their shardings.

        Args:
          variables: shape and dtype of each of the model's variables by path, as the state holds it. Slots, averages
            and sums have those of their variable, except that averages and sums of gradients are at least float32.
        """

        def shape(path: str, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            is_sum = path.startswith(_GRAD_ACCUM)
            like = variables[owner_of(path.removeprefix(_GRAD_ACCUM))]
            dtype = like.dtype
            if is_sum or is_ema(path):
                dtype = at_least_float32(dtype)
            return jax.ShapeDtypeStruct(like.shape, dtype, sharding=sharding)

        shapes: State[jax.ShapeDtypeStruct] = jax.tree.map(shape, self.paths, self.shardings)
        return shapes

    def begin(
        self, initial: Mapping[str, jax.Array], variables: Mapping[str, jax.ShapeDtypeStruct]
    ) -> State[jax.Array]:
        """Returns the state at the start of a run.

        Slots are zero, averages are the variables' own values.

        Args:
          initial: variables by path; the state takes them over.
          variables: as for `shapes`.
        """
        shapes = self.shapes(variables)
        trainable = [initial[path] for path in self.paths.trainable]
        non_trainable = [initial[path] for path in self.paths.non_trainable]
        zero_shapes = shapes._replace(trainable=[], non_trainable=[], ema=[])

        def make(weights: list[jax.Array]) -> tuple[State[jax.Array], list[jax.Array]]:
            zeros: State[jax.Array] = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), zero_shapes)
            averages = []
            for weight, kind in zip(weights, shapes.ema, strict=True):
                # A copy: the step donates both, so they must not share memory.
                averages.append(jnp.copy(weight).astype(kind.dtype))
            return zeros, averages

        averaged = []
        if self.paths.ema:
            averaged = trainable
        shardings = (jax.tree.map(lambda kind: kind.sharding, zero_shapes), self.shardings.ema)
        zeros, ema = jax.jit(make, out_shardings=shardings)(averaged)
        jax.block_until_ready((zeros, ema))
        state: State[jax.Array] = zeros._replace(trainable=trainable, non_trainable=non_trainable, ema=ema)
        return state

    def place(
        self,
        values: Mapping[str, Array],
        variables: Mapping[str, jax.ShapeDtypeStruct],
        before: State[jax.Array],
    ) -> State[jax.Array]:
        """Puts host arrays on the devices, by shards; an entry without a value is zero.

        Args:
          values: by path; see `runner.engine.base.part_of`.
          variables: as for `shapes`.
          before: the present state. Each of its arrays is released before the new one is made.
        """
        place = _Placing(values)
        state: State[jax.Array] = jax.tree.map(place, self.paths, self.shapes(variables), before)
        return state

    def by_path(self, state: State[T]) -> dict[str, T]:
        """Returns a state's entries by path, without sums of gradients."""
        paths = jax.tree.leaves(self.paths._replace(grad_accum=[]))
        entries = jax.tree.leaves(state._replace(grad_accum=[]))
        return dict(zip(paths, entries, strict=True))


class _Placing:
    """Places host arrays one by one, and releases the array that each replaces."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values
        self._freed = 0

    def __call__(self, path: str, like: jax.ShapeDtypeStruct, old: jax.Array) -> jax.Array:
        # Released at once and not with the last reference: the caller still holds the old state.
        self._freed += old.nbytes
        old.delete()
        if self._freed >= _MOST_FREED:
            heap.give_back()
            self._freed = 0
        if path in self._values:
            return placed_in_parts(lambda index: part_of(self._values, path, index), like)
        # One zero, broadcast: the host holds no array of the variable's size.
        zeros = np.broadcast_to(np.zeros((), like.dtype), like.shape)
        return placed_in_parts(zeros.__getitem__, like)


def placed_values(
    values: Mapping[str, Array], kinds: Mapping[str, jax.ShapeDtypeStruct], before: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Puts the arrays of a state without structure on the devices, as `StateTree.place` does.

    Args:
      values: by path; see `runner.engine.base.part_of`.
      kinds: shape, dtype and sharding by path.
      before: the present state. Each of its arrays is released before the new one is made.
    """
    place = _Placing(values)
    return {path: place(path, kind, before[path]) for path, kind in kinds.items()}


def state_tree(
    trainable: Sequence[str],
    non_trainable: Sequence[str],
    shardings: Mapping[str, NamedSharding],
    slots: Sequence[str],
    *,
    keeps_ema: bool,
    accumulates: bool,
) -> StateTree:
    """Returns the tree of a model's variables.

    Slots, averages and sums have the sharding of their variable.

    Args:
      trainable: paths, in the model's order.
      non_trainable: paths, in the model's order.
      shardings: by path.
      slots: names of the optimizer's slots.
      keeps_ema: the run keeps moving averages of the weights.
      accumulates: a step has several micro-batches.
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
    for slot in slots:
        slot_paths.append([slot_path(slot, path) for path in trainable])
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
            slots=[trainable_shardings] * len(slots),
            ema=ema_shardings,
            grad_accum=grad_accum_shardings,
        ),
    )
