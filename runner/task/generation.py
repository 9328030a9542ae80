"""Text sampled from a model, token by token. Imports neither TensorFlow nor JAX.

A sample depends on seed, step, row and position only, through random numbers that the host draws. It is the same on
every mesh, unless two tokens have equal scores up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runner.data.base import Array

# Tokens of a sample if the config names no number: a few sentences, while each token costs a forward pass.
DEFAULT_TOKENS = 256
# Tokens (R, T) and a position -> logits (R, V) of the token after that position.
Ask = Callable[[Array, int], Array]


def sample_tokens(
    ask: Ask, prompt: Array, count: int, length: int, temperatures: Sequence[float], seed: int, step: int
) -> Array:
    """Returns int32 (R, prompt + count): the prompt and its continuation, one row per temperature.

    Tokens are drawn by the Gumbel-max trick: the index of the largest of logit / temperature + Gumbel noise has the
    softmax's distribution (Maddison, Tarlow and Minka, A* Sampling, 2014, section 2).

    Args:
      ask: computes logits.
      prompt: int (n,), at least one token.
      count: number of tokens to sample; with the prompt at most `length`.
      length: of a row, T.
      temperatures: of each row; 0: greedy.
      seed: the run's.
      step: number of training steps done.
    """
    prompt_length = len(prompt)
    rows = np.zeros((len(temperatures), length), np.int32)
    rows[:, :prompt_length] = prompt
    for position in range(prompt_length, prompt_length + count):
        logits = ask(rows, position - 1).astype(np.float64)
        for row, temperature in enumerate(temperatures):
            scores = logits[row]
            if temperature > 0:
                scores = scores / temperature + _noise(seed, step, row, position, len(scores))
            rows[row, position] = int(np.argmax(scores))
    return rows[:, : prompt_length + count]


def _noise(seed: int, step: int, row: int, position: int, size: int) -> Array:
    bits = np.random.Philox(key=[seed, step], counter=[0, 0, row, position])
    return np.random.Generator(bits).gumbel(size=size)
