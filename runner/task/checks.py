"""Checks of a model's outputs against its task."""

from __future__ import annotations

from collections.abc import Sequence

from runner.data.base import Array
from runner.errors import ConfigError

# With at least this many logits, one is below 0 or above 1 at the start of any usual training. With fewer, real logits
# may all be between 0 and 1 by chance.
_UNITS = 8


def check_output(shape: Sequence[int | None], expected: Sequence[int], meaning: str) -> None:
    """Checks the shape of a model's output.

    Raises:
      ConfigError: it is not `[batch, *expected]`.
    """
    if tuple(shape[1:]) != tuple(expected):
        sizes = ", ".join(map(str, expected))
        kind = "size" if len(expected) == 1 else "shape"
        raise ConfigError(
            f"model._target_: the model's output must be [batch, {sizes}], {meaning}, but is {list(shape)}; end the "
            f"model in a layer of that {kind}"
        )


def not_logits(outputs: Array) -> list[str]:
    """Returns a warning for outputs of a sigmoid where those of several classes are needed."""
    if not outputs.size or outputs.shape[1] < _UNITS or not ((outputs > 0) & (outputs < 1)).all():
        return []
    return [
        "the model's outputs are all between 0 and 1, as after a sigmoid; end the model in a layer without an "
        "activation, as the loss expects logits"
    ]
