"""Checks of a model's outputs that several tasks share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner.data.base import Array
from runner.errors import ConfigError

# Absolute error of a sum of probabilities over the classes, whose terms may have been computed in bfloat16.
_ROUNDING = 1e-2
# At the start of any usual training, at least one of this many logits is below 0 or above 1, so that values that are
# all between 0 and 1 are probabilities. Fewer logits may be there by chance.
_FEWEST_UNITS = 8


def check_output(shape: Sequence[int | None], expected: Sequence[int], meaning: str) -> None:
    """Checks the shape of a model's output, whose first dim is the examples.

    Args:
      shape: of the output, the batch's dim first.
      expected: the other dims.
      meaning: why, in a clause that follows the expected shape.

    Raises:
      ConfigError: it is not `[batch, *expected]`.
    """
    if tuple(shape[1:]) == tuple(expected):
        return
    sizes = ", ".join(map(str, expected))
    what = "size" if len(expected) == 1 else "shape"
    raise ConfigError(
        f"model._target_: the model's output has shape {list(shape)}, but the task needs [batch, {sizes}] "
        f"({meaning}); end the model in a layer of that {what}"
    )


def not_logits(outputs: Array, *, sums_to_one: bool) -> list[str]:
    """Returns a warning if outputs look like probabilities: the loss takes logits, and would hardly train on them.

    Args:
      outputs: float32 (examples, units), of an untrained model.
      sums_to_one: whether to look for the outputs of a softmax, too.
    """
    fix = "end the model in a layer without an activation: the loss is computed from logits"
    if not outputs.size or not ((outputs >= 0) & (outputs <= 1)).all():
        return []
    if sums_to_one and np.allclose(outputs.sum(axis=1), 1.0, rtol=0, atol=_ROUNDING):
        return [f"the model's outputs sum to 1, like those of a softmax; {fix}"]
    if outputs.shape[1] >= _FEWEST_UNITS and ((outputs > 0) & (outputs < 1)).all():
        return [f"the model's outputs are all between 0 and 1, like those of a sigmoid; {fix}"]
    return []
