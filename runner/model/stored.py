"""Initial values of a model's variables that are in files, such as a preset's weights, read by shards.

A builder that assigned them would need the whole model in memory. Instead it gives them to the model unread, and each
device reads its shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from runner.data.base import Array

_ATTRIBUTE = "_runner_stored"


class StoredValue(Protocol):
    """A variable's initial value in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole value."""
        ...

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part, one slice per dim, of any float dtype. It is cast to the variable's."""
        ...


def give(model: object, values: Mapping[int, StoredValue]) -> None:
    """Replaces the values that initializers would draw for a built model's variables.

    Builders of users call it too, see docs/memory.md. `values`: id of a variable -> its value.
    """
    # Bypasses Keras's `__setattr__`, which would track the dict as part of the model.
    object.__setattr__(model, _ATTRIBUTE, dict(values))


def attached(model: object) -> Mapping[int, StoredValue]:
    """Returns the values that `give` has added to a model; empty if none."""
    values: Mapping[int, StoredValue] = vars(model).get(_ATTRIBUTE, {})
    return values
