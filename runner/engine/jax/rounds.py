"""Rounds of a device call: how each reads its batch and its numbers, and how one program loops over them.

Shapes: K rounds per call, each over one micro-batch; B examples of a micro-batch, N examples of a split.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from runner.data.base import ROW, WEIGHT, Array, ArraySpec
from runner.engine.jax.layers.fused_attention import fused_where_alike
from runner.engine.jax.partitioning import Partitioning
from runner.task.base import LOSS

Arrays = dict[str, jax.Array]
# `loss` and the task's metrics of each example, by name.
Sums = dict[str, jax.Array]
StateT = TypeVar("StateT", bound=Any)

# Places in a call's numbers, see `call_numbers`.
_ROUNDS = 0
_FIRST_STEP = 1
_RATE_FACTOR = 2
_COUNTS = 3


def call_numbers(rounds: int, first_step: int, rate_factor: float, counts: Array) -> Array:
    """Returns the numbers that a call's programs take beside arrays: int32 (3 + K,).

    One array for all of them, as each array is a transfer to every device. The floats are in it as their bits: int32
    would round them, and float32 can't hold a number of steps above 2**24. `counts` (K,) is what the examples of each
    round's whole step count for.
    """
    integers = np.asarray([rounds, first_step], np.int32)
    floats = np.concatenate([[rate_factor], counts]).astype(np.float32)
    return np.concatenate([integers, floats.view(np.int32)])


def rate_factor(numbers: jax.Array) -> jax.Array:
    """Returns float32 (), the factor of the learning rate in a call's numbers."""
    return _float_at(numbers, _RATE_FACTOR)


def first_step(numbers: jax.Array) -> jax.Array:
    """Returns int32 (), the steps done before a call, from its numbers."""
    return numbers[_FIRST_STEP]


def _float_at(numbers: jax.Array, index: int | jax.Array) -> jax.Array:
    """Returns a float32 number that `call_numbers` put in as its bits."""
    return lax.bitcast_convert_type(numbers[index], jnp.float32)


def batch_shapes(arrays: Mapping[str, ArraySpec], size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes (B, ...) of a batch of so many examples, in JAX's dtypes."""
    shapes = {}
    for name, spec in arrays.items():
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
        shapes[name] = jax.ShapeDtypeStruct((size, *spec.shape), dtype)
    return shapes


def only_batch(arrays: Arrays) -> Arrays:
    """Returns the batch (B, ...) of arrays (1, B, ...)."""
    return {name: array[0] for name, array in arrays.items()}


class Rounds(ABC, Generic[StateT]):
    """Base class of a step's functions; all are traced, none holds an array."""

    def __init__(self, partitioning: Partitioning, microbatches: int, metrics: Sequence[str]) -> None:
        self._partitioning = partitioning
        self._microbatches = microbatches
        self._metrics = tuple(metrics)
        # Names of the norms of gradients that a step returns after the regularization.
        self._norms: Sequence[str] = ()
        # A context for what calls layers.
        self._attention = partial(
            fused_where_alike,
            partitioning.arrays[WEIGHT],
            splits_tokens=partitioning.tokens.sequence > 1,
            heads_axis=partitioning.heads_axis,
        )

    @abstractmethod
    def step(
        self, state: StateT, split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[StateT, Sums, jax.Array]:
        """Returns one round's new state, losses and metrics (B,), and regularization.

        The arguments are those of `many`, and int32 (), the round's number in the call.
        """

    def many(
        self, state: StateT, split: Arrays | None, arrays: Arrays, numbers: jax.Array
    ) -> tuple[StateT, Sums, jax.Array]:
        """Runs a call's rounds as one program. Their number is an input, so that it needs no compilation of its own.

        Args:
          state: before.
          split: (N, ...) by name, the split's arrays if the devices keep them; None: a call has its examples.
          arrays: (K, B, ...) by name; with a kept split, `row` int32 (K, B) in their place. `weight` is among them.
          numbers: int32 (3 + K,), see `call_numbers`.

        Returns:
          The new state, losses and metrics (K, B) by name, and regularization (K,), 0 for rounds that were not done.
            With norms of gradients, these follow the regularization, (K, 1 + norms).
        """

        def body(index: jax.Array, carried: tuple[StateT, Sums, jax.Array]) -> tuple[StateT, Sums, jax.Array]:
            state, *rows = carried
            state, *new_row = self.step(state, split, arrays, numbers, index)
            sums, regularization = jax.tree.map(
                lambda row, new: lax.dynamic_update_index_in_dim(row, new, index, 0), tuple(rows), tuple(new_row)
            )
            return state, sums, regularization

        zeros_kb = jnp.zeros(arrays[WEIGHT].shape, jnp.float32)
        zeros_kb = lax.with_sharding_constraint(zeros_kb, self._partitioning.sums)
        sums = dict.fromkeys((LOSS, *self._metrics), zeros_kb)
        regularization_k = jnp.zeros(zeros_kb.shape[:1], jnp.float32)
        if self._norms:
            regularization_k = jnp.zeros((len(regularization_k), 1 + len(self._norms)), jnp.float32)
        start = (state, sums, regularization_k)
        results: tuple[StateT, Sums, jax.Array] = lax.fori_loop(0, numbers[_ROUNDS], body, start)
        return results

    def _batch(
        self, split: Arrays | None, arrays: Arrays, numbers: jax.Array, index: jax.Array
    ) -> tuple[Arrays, jax.Array, jax.Array]:
        """Returns a round's arrays (B, ...), what its step's examples count for, and the micro-batches done before."""
        batch = {}
        for name, array in arrays.items():
            batch[name] = self._constrain(name, lax.dynamic_index_in_dim(array, index, 0, keepdims=False))
        if split is not None:
            rows_b = batch.pop(ROW)
            for name, examples in split.items():
                # All rows are in range. By default JAX compares each with the range and fills what is out of it.
                batch[name] = self._constrain(name, examples.at[rows_b].get(mode="clip"))
        count = _float_at(numbers, _COUNTS + index)
        return batch, count, numbers[_FIRST_STEP] * self._microbatches + index

    def _constrain(self, name: str, array: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(array, self._partitioning.arrays[name])
