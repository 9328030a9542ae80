"""What a step of the engine `jax` reads and gives anew: variables, slots, averages, sums of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding

from runner.data.base import Array
from runner.engine.base import part_of
from runner.optim.paths import ema_path, owner_of, slot_path

T = TypeVar("T")
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
          variables: shapes and dtypes of the model's variables by path; what belongs to one has the same.
        """

        def shape(path: str, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            like = variables[owner_of(path.removeprefix(_GRAD_ACCUM))]
            return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding)

        found: State[jax.ShapeDtypeStruct] = jax.tree.map(shape, self.paths, self.shardings)
        return found

    def place(self, values: Mapping[str, Array], variables: Mapping[str, jax.ShapeDtypeStruct]) -> State[jax.Array]:
        """Puts host arrays on the devices, of each the parts that they hold; an entry without a value is zero.

        Args:
          values: by path; see `runner.engine.base.part_of`.
          variables: as `shapes` takes them.
        """

        def placed(path: str, like: jax.ShapeDtypeStruct) -> jax.Array:
            def piece(index: tuple[slice, ...]) -> Array:
                # A copy: the first step gives these buffers away, and they must not be the host array's own memory.
                if path in values:
                    return np.array(part_of(values, path, index), like.dtype)
                return np.zeros(
                    [len(range(*i.indices(n))) for i, n in zip(index, like.shape, strict=True)], like.dtype
                )

            if like.sharding.is_fully_addressable:
                return jax.device_put(piece(tuple(slice(None) for _ in like.shape)), like.sharding, may_alias=False)
            return jax.make_array_from_callback(like.shape, like.sharding, piece)

        found: State[jax.Array] = jax.tree.map(placed, self.paths, self.shapes(variables))
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
