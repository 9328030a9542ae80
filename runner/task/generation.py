"""Text sampled from a model, token by token. Imports neither TensorFlow nor JAX.

A sample depends on seed, step, row and position only, through random numbers that the host draws. It is the same on
every mesh, unless two tokens have equal scores up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runner.data.base import Array
from runner.data.vocabulary import EncodingError, Vocabulary
from runner.errors import invalid

# Tokens of a sample if the config names no number: a few sentences, while each token costs a forward pass.
DEFAULT_TOKENS = 256
# Tokens (R, T) and a position of each row (R,) -> logits (R, V) of the tokens after these positions.
Ask = Callable[[Array, Array], Array]


def sample_tokens(
    ask: Ask,
    prompts: Sequence[Array],
    counts: Sequence[int],
    length: int,
    temperatures: Sequence[float],
    seed: int,
    step: int,
) -> list[Array]:
    """Returns the prompts and their continuations, int32 (prompt + count,) per row.

    With temperature 0, a token is the most probable one. Others are drawn by the Gumbel-max trick: the index of the
    largest of logit / temperature + Gumbel noise has the softmax's distribution (Maddison, Tarlow and Minka, A*
    Sampling, 2014, section 2).
    """
    rows = np.zeros((len(prompts), length), np.int32)
    lengths = np.array(list(map(len, prompts)))
    ends = lengths + np.asarray(counts)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    while (lengths < ends).any():
        # A row that is done has a position too, whose logits are not used.
        logits = ask(rows, lengths - 1).astype(np.float64)
        for index in np.flatnonzero(lengths < ends).tolist():
            position = int(lengths[index])
            rows[index, position] = _drawn(logits[index], temperatures[index], seed, step, index, position)
            lengths[index] += 1
    return [row[:end] for row, end in zip(rows, ends, strict=True)]


def _drawn(logits: Array, temperature: float, seed: int, step: int, row: int, position: int) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    bits = np.random.Philox(key=[seed, step], counter=[0, 0, row, position])
    return int(np.argmax(logits / temperature + np.random.Generator(bits).gumbel(size=len(logits))))


def encode_prompt(
    text: str | None, tokens: int | None, keys: tuple[str, str], vocabulary: Vocabulary, length: int, *, of_ends: bool
) -> Array:
    """Returns the tokens (n,) that samples of so many `tokens` start with, for rows of `length` tokens.

    Args:
      text: None: the end of a document if `of_ends`, as the model then learns what follows it, else a new line.
      keys: of the text and of the number of tokens.

    Raises:
      ConfigError: the vocabulary can't encode the prompt, or a row has no room for it and the sample.
    """
    key, key_of_tokens = keys
    if text is None:
        prompt = _default_prompt(vocabulary, of_ends=of_ends)
    else:
        prompt = _encoded(text, vocabulary)
        # A tokenizer may drop or replace every character that it does not know.
        is_lost = bool(text.strip()) and not vocabulary.decode(prompt).strip()
        if not len(prompt) or is_lost:
            raise invalid(key, text, problem="has no tokens in the vocabulary", fix="write another prompt")
    room = length - len(prompt)
    if room < 1:
        problem = f"must have fewer tokens than a row, {length}, but has {len(prompt)}"
        raise invalid(key, text, problem=problem, fix="shorten it, or train with longer rows")
    if tokens is not None and tokens > room:
        problem = f"must be at most {room}: a row has {length} tokens, and the prompt needs {len(prompt)}"
        raise invalid(key_of_tokens, tokens, problem=problem, fix=f"set {key_of_tokens}={room}")
    return prompt


def _default_prompt(vocabulary: Vocabulary, *, of_ends: bool) -> Array:
    """Returns the end-of-document token, else a new line, else token 0."""
    if of_ends and vocabulary.end is not None:
        return np.array([vocabulary.end], np.int32)
    new_line = _encoded("\n", vocabulary)
    if len(new_line):
        return new_line
    return np.zeros(1, np.int32)


def _encoded(text: str, vocabulary: Vocabulary) -> Array:
    try:
        return vocabulary.encode(text)
    except EncodingError:
        return np.zeros(0, np.int32)
