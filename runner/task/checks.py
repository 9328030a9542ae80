"""What tasks check of a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner.data.base import Array
from runner.errors import ConfigError

_ROUNDING = 1e-2  # of a sum over the classes, in bfloat16 too
_UNITS = 8  # of so many logits, one at least is below 0 or above 1 at the start of any usual training


def check_output(shape: Sequence[int | None], wanted: Sequence[int], meaning: str) -> None:
    """Checks the shape of a model's output, whose first dim is the examples.

    Raises:
      ConfigError: it is not `[batch, *wanted]`.
    """
    if tuple(shape[1:]) != tuple(wanted):
        sizes = ", ".join(map(str, wanted))
        raise ConfigError(
            f"model._target_: the model gives {list(shape)}, allowed is [batch, {sizes}], {meaning}; end "
            f"it in a layer of that {'size' if len(wanted) == 1 else 'shape'}"
        )


def not_logits(outputs: Array, *, sums_to_one: bool) -> list[str]:
    """Returns what outputs tell that are no logits: the loss takes them for such, and hardly trains.

    Args:
      outputs: float32 (examples, units), what an untrained model gives where logits are wanted.
      sums_to_one: whether to look for those of a softmax, too.
    """
    fix = "end the model in a layer without an activation: the loss is computed from logits"
    if not outputs.size or not ((outputs >= 0) & (outputs <= 1)).all():
        return []
    if sums_to_one and np.allclose(outputs.sum(axis=1), 1.0, rtol=0, atol=_ROUNDING):
        return [f"the model's outputs sum to 1, as those of a softmax; {fix}"]
    if outputs.shape[1] >= _UNITS and ((outputs > 0) & (outputs < 1)).all():
        return [f"the model's outputs all lie between 0 and 1, as those of a sigmoid; {fix}"]
    return []
