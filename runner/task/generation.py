"""Text sampled from a model, token by token. Imports neither TensorFlow nor JAX.

A sample depends on seed, step, row and position only, through random numbers that the host draws. It is the same on
every mesh, unless two tokens have equal scores up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.data.base import Array

# Tokens of a sample if the config names no number: a few sentences, while each token costs a forward pass.
DEFAULT_TOKENS = 256
# Tokens (R, T) and a position of each row (R,) -> logits (R, V) of the tokens after these positions.
Ask = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from the logits.

    Attributes:
      temperature: divisor of the logits; 0: the most probable token.
      top_k: draw from the k most probable tokens; None: from all.
      top_p: draw from the smallest set of most probable tokens whose probabilities, after the temperature and `top_k`,
        add up to this or more: nucleus sampling (Holtzman et al., arXiv:1904.09751); None: from all.
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class Continuation:
    """Rows that are continued together, token by token, by an engine that keeps their keys and values.

    Attributes:
      prompts: int32 (R, P), padded at their end.
      lengths: int32 (R,), tokens of each prompt.
      counts: int (R,), number of tokens to write after each; some may get more, as many as another row.
      sampling: how they are drawn.
      seed: of the draws.
      vocabulary: number of tokens that exist; logits of others are left out.
      numbers: int (R,), number of each row, which its draws depend on; rows that fill the mesh have that of another.
    """

    prompts: Array
    lengths: Array
    counts: Array
    sampling: Sampling
    seed: int
    vocabulary: int
    numbers: Array

    @property
    def count(self) -> int:
        """Number of tokens to write."""
        return int(self.counts.max())

    def of_rows(self, rows: Array, length: int) -> Continuation:
        """Returns the continuation of some of the rows, whose prompts have one length."""
        return replace(
            self,
            prompts=self.prompts[rows, :length],
            lengths=self.lengths[rows],
            counts=self.counts[rows],
            numbers=self.numbers[rows],
        )

    def noise(self, start: int, stop: int, units: int) -> Array:
        """Returns the Gumbel noise of some of the new tokens, float32 (stop - start, R, units), as `sample_tokens`."""
        noise = np.zeros((stop - start, len(self.lengths), units), np.float32)
        for index in range(len(self.lengths)):
            row = int(self.numbers[index])
            for token in range(start, stop):
                position = int(self.lengths[index]) + token
                noise[token - start, index, : self.vocabulary] = _noise(self.seed, 0, row, position, self.vocabulary)
        return noise


# Continues rows: int32 (R, count).
Write = Callable[[Continuation], Array]
# Prompts are padded to a multiple of this, so that prompts of similar lengths share a compiled program.
_PROMPT_MULTIPLE = 16


def written_tokens(
    write: Write,
    prompts: Sequence[Array],
    counts: Sequence[int],
    length: int,
    sampling: Sampling,
    seed: int,
    vocabulary: int,
    multiple: int,
    first_row: int = 0,
) -> list[Array]:
    """Returns what `sample_tokens` does, step 0, from an engine that writes all tokens by itself.

    Args:
      write: the engine's.
      prompts: int (n,) of each row, at least one token.
      counts: number of tokens to write for each row; with its prompt at most `length`.
      length: of a row.
      sampling: how tokens are drawn.
      seed: of the draws.
      vocabulary: number of tokens that exist.
      multiple: number that must divide the rows.
      first_row: number of the first row, if these are some of several rows.
    """
    longest = max(map(len, prompts))
    padded = min(-(-longest // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE, length)
    rows = np.zeros((len(prompts), padded), np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    # Row i is row i modulo R, so that padding repeats rows.
    indices = np.arange(-(-len(rows) // multiple) * multiple) % len(rows)
    continuation = Continuation(
        rows[indices],
        lengths[indices],
        np.asarray(counts)[indices],
        sampling,
        seed,
        vocabulary,
        first_row + indices,
    )
    new_tokens = write(continuation)
    texts = []
    for prompt, tokens, count in zip(prompts, new_tokens, counts, strict=False):
        texts.append(np.concatenate([prompt, tokens[:count]]).astype(np.int32))
    return texts


def sample_tokens(
    ask: Ask,
    prompts: Sequence[Array],
    counts: Sequence[int],
    length: int,
    samplings: Sequence[Sampling],
    seed: int,
    step: int,
    first_row: int = 0,
) -> list[Array]:
    """Returns the prompts and their continuations, int32 (prompt + count,) per row.

    Tokens are drawn by the Gumbel-max trick: the index of the largest of logit / temperature + Gumbel noise has the
    softmax's distribution (Maddison, Tarlow and Minka, A* Sampling, 2014, section 2).

    Args:
      ask: computes logits.
      prompts: int (n,) of each row, at least one token.
      counts: number of tokens to sample for each row; with its prompt at most `length`.
      length: of a row, T.
      samplings: how each row's tokens are drawn.
      seed: of the draws.
      step: number of training steps done.
      first_row: number of the first row, if these are some of several rows.
    """
    rows = np.zeros((len(prompts), length), np.int32)
    lengths = np.array([len(prompt) for prompt in prompts])
    ends = lengths + np.asarray(counts)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    while (lengths < ends).any():
        # A row that is done has a position too, whose logits are not used.
        logits = ask(rows, lengths - 1).astype(np.float64)
        for index in np.flatnonzero(lengths < ends).tolist():
            position = int(lengths[index])
            noise_row = first_row + index
            rows[index, position] = _drawn(logits[index], samplings[index], seed, step, noise_row, position)
            lengths[index] += 1
    return [row[:end] for row, end in zip(rows, ends, strict=True)]


def _drawn(logits: Array, sampling: Sampling, seed: int, step: int, row: int, position: int) -> int:
    """Returns the next token of a row, from float64 logits (V,)."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    scores = kept_scores(logits / sampling.temperature, sampling)
    return int(np.argmax(scores + _noise(seed, step, row, position, len(scores))))


def kept_scores(scores: Array, sampling: Sampling) -> Array:
    """Returns scores (V,) with minus infinity for the tokens that `top_k` and `top_p` leave out.

    Of tokens with equal scores, those with lower numbers are kept first.
    """
    if sampling.top_k is None and sampling.top_p is None:
        return scores
    order = np.argsort(-scores, kind="stable")
    kept = order[: sampling.top_k]
    if sampling.top_p is not None:
        weights = np.exp(scores[kept] - scores[kept[0]])
        before = (np.cumsum(weights) - weights) / weights.sum()
        # The first token has nothing before it, so at least one is kept.
        kept = kept[before < sampling.top_p]
    limited = np.full_like(scores, -np.inf)
    limited[kept] = scores[kept]
    return limited


def _noise(seed: int, step: int, row: int, position: int, size: int) -> Array:
    bits = np.random.Philox(key=[seed, step], counter=[0, 0, row, position])
    return np.random.Generator(bits).gumbel(size=size)
