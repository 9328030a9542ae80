"""What a step of the engine `jax` reads and gives again: variables, slots, averages, sums of gradients."""

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
_MOST_FREED = 32 << 20  # bytes of arrays whose memory the C library may keep
_GRAD_ACCUM = "grad_accum:"  # of a step's gradients so far; between two steps it means nothing, and is not saved


class State(NamedTuple, Generic[T]):
    """A tree with an entry a variable: its array, or its path, sharding or shape.

    Attributes:
      trainable: trainable variables, in the model's order.
      non_trainable: the other weights, as batch statistics, in the model's order.
      slots: one list a slot name, each aligned with `trainable`.
      ema: averages of the trainable variables, aligned with them; none where the run keeps none.
      grad_accum: sums of the gradients of a step's micro-batches so far, likewise; none where a step has one.
    """

    trainable: list[T]
    non_trainable: list[T]
    slots: list[list[T]]
    ema: list[T]
    grad_accum: list[T]


@dataclass(frozen=True)
class StateTree:
    """Where each entry of a state lies.

    Attributes:
      paths: canonical, of `Engine.state`.
      shardings: of the same tree.
    """

    paths: State[str]
    shardings: State[NamedSharding]

    def shapes(self, variables: Mapping[str, jax.ShapeDtypeStruct]) -> State[jax.ShapeDtypeStruct]:
        """Returns a state's shapes, with their shardings.

        Args:
          variables: shapes and dtypes of the model's variables by path, as they are held. What belongs to one has the
            same; averages and sums of gradients are float32 where that is narrower.
        """

        def shape(path: str, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            like = variables[owner_of(path.removeprefix(_GRAD_ACCUM))]
            adds_up = is_ema(path) or path.startswith(_GRAD_ACCUM)
            dtype = at_least_float32(like.dtype) if adds_up else like.dtype
            return jax.ShapeDtypeStruct(like.shape, dtype, sharding=sharding)

        found: State[jax.ShapeDtypeStruct] = jax.tree.map(shape, self.paths, self.shardings)
        return found

    def begun(self, first: Mapping[str, jax.Array], variables: Mapping[str, jax.ShapeDtypeStruct]) -> State[jax.Array]:
        """Returns the state that a run begins with: slots are zero, averages are the variables' own values.

        Args:
          first: variables by path, which it takes over.
          variables: as `shapes` takes them.
        """
        shapes = self.shapes(variables)
        trainable, others = (
            [first[path] for path in paths] for paths in (self.paths.trainable, self.paths.non_trainable)
        )
        rest = shapes._replace(trainable=[], non_trainable=[], ema=[])

        def made(values: list[jax.Array]) -> tuple[State[jax.Array], list[jax.Array]]:
            zeros: State[jax.Array] = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), rest)
            kinds = shapes.ema[: len(values)]
            return zeros, [jnp.copy(value).astype(kind.dtype) for value, kind in zip(values, kinds, strict=True)]

        lies = (jax.tree.map(lambda one: one.sharding, rest), self.shardings.ema)
        zeros, ema = jax.jit(made, out_shardings=lies)(trainable if self.paths.ema else [])
        jax.block_until_ready((zeros, ema))
        state: State[jax.Array] = zeros._replace(trainable=trainable, non_trainable=others, ema=ema)
        return state

    def place(
        self,
        values: Mapping[str, Array],
        variables: Mapping[str, jax.ShapeDtypeStruct],
        before: State[jax.Array],
    ) -> State[jax.Array]:
        """Puts host arrays on the devices, of each the parts that they hold; an entry without a value is zero.

        Args:
          values: by path; see `runner.engine.base.part_of`.
          variables: as `shapes` takes them.
          before: the state until now. Each of its arrays is let go of before the next is there.
        """
        freed = 0

        def placed(path: str, like: jax.ShapeDtypeStruct, old: jax.Array) -> jax.Array:
            nonlocal freed
            freed += old.nbytes
            old.delete()
            if freed >= _MOST_FREED:
                heap.give_back()
                freed = 0
            if path in values:
                return placed_in_parts(lambda index: part_of(values, path, index), like)
            return placed_in_parts(np.broadcast_to(np.zeros((), like.dtype), like.shape).__getitem__, like)

        found: State[jax.Array] = jax.tree.map(placed, self.paths, self.shapes(variables), before)
        return found

    def by_path(self, state: State[jax.Array]) -> dict[str, jax.Array]:
        """Returns a state's entries by path, without sums of gradients."""
        kept = self.paths._replace(grad_accum=[]), state._replace(grad_accum=[])
        return dict(zip(*(jax.tree.leaves(tree) for tree in kept), strict=True))


def state_tree(
    trainable: Sequence[str],
    non_trainable: Sequence[str],
    shardings: Mapping[str, NamedSharding],
    slots: Sequence[str],
    *,
    keeps_ema: bool,
    accumulates: bool,
) -> StateTree:
    """Returns the tree of a model's variables; what belongs to a variable lies as the variable does.

    Args:
      trainable: paths, in the model's order.
      non_trainable: likewise.
      shardings: by path.
      slots: names of the optimizer's.
      keeps_ema: the run keeps averages of the weights.
      accumulates: a step has several micro-batches.
    """
    lies = [shardings[path] for path in trainable]
    return StateTree(
        State(
            [*trainable],
            [*non_trainable],
            [[slot_path(slot, path) for path in trainable] for slot in slots],
            [ema_path(path) for path in trainable] if keeps_ema else [],
            [f"{_GRAD_ACCUM}{path}" for path in trainable] if accumulates else [],
        ),
        State(
            lies,
            [shardings[path] for path in non_trainable],
            [lies for _ in slots],
            lies if keeps_ema else [],
            lies if accumulates else [],
        ),
    )
