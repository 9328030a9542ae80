"""Values that a builder has for its model's variables, as a preset's weights: an engine reads them in parts.

A builder that assigned them would hold the whole model. It says where they lie, and each device gets its own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from runner.data.base import Array

_HELD = "_runner_stored"


class StoredValue(Protocol):
    """A variable's initial value where it lies."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        ...

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part, one slice a dim, of any float dtype; it is cast to the variable's."""
        ...


def give(model: object, values: Mapping[int, StoredValue]) -> None:
    """Says of a built model what its variables begin with, in place of what their initializers draw.

    Args:
      model: that the builder returns.
      values: id of a variable -> its value; variables that are not there are drawn.
    """
    object.__setattr__(model, _HELD, dict(values))  # past Keras's own, which would track it


def given(model: object) -> Mapping[int, StoredValue]:
    """Returns what `give` was told of a model; empty where it was told nothing."""
    found: Mapping[int, StoredValue] = vars(model).get(_HELD, {})
    return found


def whole(value: StoredValue) -> Any:
    """Returns a whole value."""
    return value.read(tuple(slice(None) for _ in value.shape))
