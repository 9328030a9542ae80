"""Programs that write tokens with a key/value cache: one of the prompts, and a compiled loop over the new tokens.

Shapes: R rows, P tokens of the padded prompts, N new tokens per call, S slots of a cache, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from runner.data.base import WEIGHT, Array
from runner.engine.jax.partitioning import Partitioning
from runner.engine.jax.step import Step, Weights
from runner.model.decoding import Decoder
from runner.model.hub.decoding import HubDecoder
from runner.model.transformer import CachedTokens
from runner.task.generation import Continuation, Sampling

# Numbers of noise that one call takes from the host, 64 MB: the loop of a large vocabulary is run in several calls.
_MOST_NOISE = 1 << 24


class Written(NamedTuple):
    """The state between two new tokens.

    Attributes:
      logits: float32 (R, V), of the next token.
      caches: of the model's attentions.
    """

    logits: jax.Array
    caches: list[jax.Array]


class Decoding:
    """The programs of one model; they have no state."""

    def __init__(
        self,
        decoder: Decoder | HubDecoder,
        step: Step,
        partitioning: Partitioning,
        run: Callable[..., Any],
        replicated: NamedSharding,
    ) -> None:
        """Prepares the programs for compilation.

        Args:
          decoder: of the model.
          step: functions of the same model.
          partitioning: how the mesh splits a step.
          run: starts a program.
          replicated: on the mesh's devices.
        """
        self._decoder = decoder
        self._step = step
        self._partitioning = partitioning
        self._run = run
        self._prompted = jax.jit(self._prompt, static_argnames=("slots",))
        self._looped = jax.jit(
            self._loop,
            static_argnames=("count", "sampling", "vocabulary"),
            donate_argnames=("written",),
            out_shardings=(replicated, None),
        )

    def write(self, weights: Weights, continuation: Continuation, to_host: Callable[[jax.Array], Array]) -> Array:
        """Returns the new tokens, int32 (R, count).

        Args:
          weights: as an evaluation uses them.
          continuation: what to write.
          to_host: returns an array of the devices as one of the host.
        """
        if self._decoder.pads_prompts:
            return self._written(weights, continuation, to_host)
        tokens = np.zeros((len(continuation.lengths), continuation.count), np.int32)
        for length in np.unique(continuation.lengths):
            rows = np.flatnonzero(continuation.lengths == length)
            # The mesh must divide the rows: some are written twice.
            filled = rows[np.arange(-(-len(rows) // self._row_parts) * self._row_parts) % len(rows)]
            written = self._written(weights, continuation.of_rows(filled, int(length)), to_host)
            tokens[filled, : written.shape[1]] = written
        return tokens

    def _written(self, weights: Weights, continuation: Continuation, to_host: Callable[[jax.Array], Array]) -> Array:
        """Returns the new tokens of rows that may be computed together."""
        sampling = continuation.sampling
        count = continuation.count
        rows = len(continuation.lengths)
        prompts = continuation.prompts
        calls = 1
        if sampling.temperature != 0:
            calls = -(-count * rows * self._units(weights, prompts) // _MOST_NOISE)
        # Calls of equal numbers of tokens share one program; the last call may have fewer.
        per_call = -(-count // calls)
        slots = prompts.shape[1] + count
        lengths = continuation.lengths
        written = self._run(partial(self._prompted, slots=slots), weights, prompts, lengths)
        tokens = []
        for start in range(0, count, per_call):
            stop = min(start + per_call, count)
            noise = None
            if sampling.temperature != 0:
                noise = continuation.noise(start, stop, written.logits.shape[1])
            loop = partial(
                self._looped,
                count=stop - start,
                sampling=sampling,
                vocabulary=continuation.vocabulary,
                written=written,
            )
            first_slot = np.int32(prompts.shape[1])
            new_tokens, written = self._run(loop, weights, lengths, first_slot, np.int32(start), noise)
            tokens.append(to_host(new_tokens))
        return np.concatenate(tokens, axis=1)

    def _units(self, weights: Weights, prompts: Array) -> int:
        """Returns V, which may be larger than the number of tokens that exist."""
        lengths = np.ones(len(prompts), np.int32)
        written: Written = jax.eval_shape(partial(self._prompt, slots=prompts.shape[1]), weights, prompts, lengths)
        return int(written.logits.shape[1])

    def _prompt(self, weights: Weights, prompts_rp: jax.Array, lengths_r: jax.Array, slots: int) -> Written:
        """Returns the state after the prompts."""
        rows, length = prompts_rp.shape
        if isinstance(self._decoder, HubDecoder):
            return self._hub_prompt(weights, prompts_rp, slots)
        position_p = jnp.arange(length)
        # Padding at the end of a prompt is attended to by padding alone.
        mask = position_p[:, None] >= jnp.arange(slots)[None, :]
        new = CachedTokens(jnp.broadcast_to(position_p, (rows, length)), jnp.int32(0), mask[None, None])
        mark_rp = (position_p[None, :] == lengths_r[:, None] - 1).astype(jnp.float32)
        caches = [jnp.zeros(shape, dtype) for shape, dtype in self._decoder.cache_shapes(rows, slots)]
        return self._called(weights, self._by_row(prompts_rp), self._placed(caches), new, mark_rp)

    def _hub_prompt(self, weights: Weights, prompts_rp: jax.Array, slots: int) -> Written:
        """Returns the state after prompts of one length."""
        assert isinstance(self._decoder, HubDecoder)
        rows, length = prompts_rp.shape
        filled_rs = self._by_row(jnp.pad(prompts_rp, ((0, 0), (0, slots - length))))
        with self._step.using(weights):
            caches = self._placed(self._decoder.seeded(filled_rs))
        # The last token is computed again, for its logits.
        new = CachedTokens(None, jnp.int32(length - 1), None)
        return self._called(weights, self._by_row(prompts_rp[:, -1:]), caches, new, jnp.ones((rows, 1), jnp.float32))

    def _loop(
        self,
        weights: Weights,
        lengths_r: jax.Array,
        first_slot: jax.Array,
        start: jax.Array,
        noise_nrv: jax.Array | None,
        *,
        written: Written,
        count: int,
        sampling: Sampling,
        vocabulary: int,
    ) -> tuple[jax.Array, Written]:
        """Returns the next tokens (R, N), and the state after them.

        Args:
          weights: as an evaluation uses them.
          lengths_r: of the prompts.
          first_slot: of the first new token of the first call.
          start: number of tokens written before.
          noise_nrv: Gumbel noise; None: the most probable token is taken.
          written: the state.
          count: N.
          sampling: how tokens are drawn.
          vocabulary: number of tokens that exist.
        """
        rows = lengths_r.shape[0]

        def body(index: jax.Array, carry: tuple[jax.Array, Written]) -> tuple[jax.Array, Written]:
            tokens_rn, before = carry
            noise_rv = None
            if noise_nrv is not None:
                noise_rv = lax.dynamic_index_in_dim(noise_nrv, index, 0, keepdims=False)
            token_r = drawn(before.logits, sampling, vocabulary, noise_rv)
            tokens_rn = lax.dynamic_update_slice(tokens_rn, token_r[:, None], (0, index))
            number = start + index
            slot = first_slot + number
            after = self._next(weights, token_r, lengths_r, number, slot, first_slot, before.caches)
            return tokens_rn, after

        none = jnp.zeros((rows, count), jnp.int32)
        tokens, after = lax.fori_loop(0, count, body, (none, written))
        return tokens, after

    def _next(
        self,
        weights: Weights,
        token_r: jax.Array,
        lengths_r: jax.Array,
        number: jax.Array,
        slot: jax.Array,
        first_slot: jax.Array,
        caches: Sequence[jax.Array],
    ) -> Written:
        """Returns the state after one new token per row.

        Args:
          weights: as an evaluation uses them.
          token_r: the tokens.
          lengths_r: of the prompts.
          number: of earlier new tokens.
          slot: of the tokens.
          first_slot: of the first new token.
          caches: of the earlier tokens.
        """
        slot_s = jnp.arange(caches[0].shape[-3])
        is_prompt_rs = slot_s[None, :] < lengths_r[:, None]
        is_new_s = (slot_s >= first_slot) & (slot_s <= slot)
        mask_rs = is_prompt_rs | is_new_s[None, :]
        position_r = lengths_r + number
        if self._decoder.positions is not None:
            # A row that is done is continued with the others; its further tokens are not used.
            position_r = jnp.minimum(position_r, self._decoder.positions - 1)
        new = CachedTokens(position_r[:, None], slot, mask_rs[:, None, None, :])
        mark_r1 = jnp.ones((len(lengths_r), 1), jnp.float32)
        return self._called(weights, self._by_row(token_r[:, None]), caches, new, mark_r1)

    def _called(
        self,
        weights: Weights,
        tokens: jax.Array,
        caches: Sequence[jax.Array],
        new: CachedTokens,
        mark: jax.Array,
    ) -> Written:
        with self._step.using(weights):
            outputs, new_caches = self._decoder(tokens, caches, new)
        logits_rv = self._by_row(self._step.marked_logits(outputs, mark))
        return Written(logits_rv, self._placed(new_caches))

    def _by_row(self, x: jax.Array) -> jax.Array:
        """Returns an array (R, ...) with its rows split as examples are."""
        return self._constrained(x, [self._row_axes])

    def _placed(self, caches: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns caches with their rows split as examples are, and their heads as attention's."""
        placed = []
        for cache in caches:
            axis = self._partitioning.heads_axis
            if axis is not None and cache.shape[-2] % self._mesh.shape[axis]:
                # Heads of keys and values that the axis does not divide are replicated.
                axis = None
            spec: list[Any] = [None] * cache.ndim
            spec[self._decoder.rows_dim] = self._row_axes
            spec[-2] = axis
            placed.append(self._constrained(cache, spec))
        return placed

    def _constrained(self, x: jax.Array, spec: Sequence[Any]) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(self._mesh, PartitionSpec(*spec)))

    @property
    def _mesh(self) -> Any:
        return self._partitioning.arrays[WEIGHT].mesh

    @property
    def _row_axes(self) -> Any:
        spec = self._partitioning.arrays[WEIGHT].spec
        return spec[0] if spec else None

    @property
    def _row_parts(self) -> int:
        """Returns the number of parts into which the mesh splits rows."""
        axes = self._row_axes
        if axes is None:
            return 1
        if isinstance(axes, str):
            axes = (axes,)
        return math.prod(self._mesh.shape[axis] for axis in axes)


def drawn(logits_rv: jax.Array, sampling: Sampling, vocabulary: int, noise_rv: jax.Array | None) -> jax.Array:
    """Returns int32 (R,), the next token of each row, as `runner.task.generation` draws it on the host.

    Args:
      logits_rv: float32.
      sampling: temperature, top-k and top-p.
      vocabulary: number of tokens that exist.
      noise_rv: Gumbel noise; None: the most probable token is taken.
    """
    exists_v = jnp.arange(logits_rv.shape[1]) < vocabulary
    scores_rv = jnp.where(exists_v, logits_rv, -jnp.inf)
    if noise_rv is not None:
        # The token with the largest sum of score and Gumbel noise is a draw from the softmax of the scores.
        scores_rv = kept_scores(scores_rv / sampling.temperature, sampling) + noise_rv
    return jnp.argmax(scores_rv, axis=-1).astype(jnp.int32)


def kept_scores(scores_rv: jax.Array, sampling: Sampling) -> jax.Array:
    """Returns scores (R, V) with minus infinity for the tokens that `top_k` and `top_p` leave out."""
    if sampling.top_k is None and sampling.top_p is None:
        return scores_rv
    # Stable, as on the host, so that of equal scores both keep the same tokens.
    order_rv = jnp.argsort(-scores_rv, axis=-1, stable=True)
    sorted_rv = jnp.take_along_axis(scores_rv, order_rv, axis=-1)
    rank_v = jnp.arange(scores_rv.shape[1])
    is_kept_rv = jnp.ones(scores_rv.shape, bool)
    if sampling.top_k is not None:
        is_kept_rv = is_kept_rv & (rank_v < sampling.top_k)
    if sampling.top_p is not None:
        weights_rv = jnp.where(is_kept_rv, jnp.exp(sorted_rv - sorted_rv[:, :1]), 0.0)
        before_rv = (jnp.cumsum(weights_rv, axis=-1) - weights_rv) / jnp.sum(weights_rv, axis=-1, keepdims=True)
        # The first token has nothing before it, so at least one is kept.
        is_kept_rv = is_kept_rv & (before_rv < sampling.top_p)
    # To sort a permutation inverts it: from the tokens in order of their scores to the rank of each token.
    rank_of_token_rv = jnp.argsort(order_rv, axis=-1)
    return jnp.where(jnp.take_along_axis(is_kept_rv, rank_of_token_rv, axis=-1), scores_rv, -jnp.inf)
