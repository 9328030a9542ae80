"""Text that a model writes, a token at a time. Imports neither TensorFlow nor JAX.

What is drawn is a function of seed, step, row and place alone, by numbers that the host draws: it is the same on every
mesh, but where two tokens are as likely up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runner.data.base import Array

MOST_TOKENS = 256  # that a sample has where no number is given
Ask = Callable[[Array, int], Array]  # tokens (R, T) and a place -> logits (R, V) of the token behind it


def write(
    ask: Ask, prompt: Array, count: int, length: int, temperatures: Sequence[float], seed: int, step: int
) -> Array:
    """Returns int32 (R, prompt + count), the prompt and what follows it, a row a temperature.

    Drawn by the Gumbel-max trick: the largest of logit / temperature + noise has the softmax's distribution (Maddison,
    Tarlow and Minka, A* Sampling, 2014, section 2).

    Args:
      ask: computes logits.
      prompt: int (n,), at least one token.
      count: tokens to be written; with the prompt at most `length`.
      length: of a row, T.
      temperatures: of each row; 0: the likeliest token.
      seed: of the run.
      step: training steps done.
    """
    begun = len(prompt)
    rows = np.zeros((len(temperatures), length), np.int32)
    rows[:, :begun] = prompt
    for place in range(begun, begun + count):
        logits = ask(rows, place - 1).astype(np.float64)
        for row, temperature in enumerate(temperatures):
            scores = logits[row]
            if temperature > 0:
                scores = scores / temperature + _noise(seed, step, row, place, len(scores))
            rows[row, place] = int(np.argmax(scores))
    return rows[:, : begun + count]


def _noise(seed: int, step: int, row: int, place: int, size: int) -> Array:
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, row, place])).gumbel(size=size)
