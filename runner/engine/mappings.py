"""Mappings by name or path, whose values are arrays, variables, shardings or specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")
U = TypeVar("U")


def map_values(function: Callable[[T], U], values: Mapping[K, T]) -> dict[K, U]:
    """Returns a function's result for each value, under the value's key."""
    return {key: function(value) for key, value in values.items()}


def subset(values: Mapping[K, T], keys: Iterable[K]) -> dict[K, T]:
    """Returns the values of some keys, in the order of the keys."""
    return {key: values[key] for key in keys}


def keys_by_id(values: Mapping[K, object]) -> dict[int, K]:
    """Returns the key of each value by its id: variables compare by their elements and can't be keys."""
    return {id(value): key for key, value in values.items()}


def without(values: Mapping[K, T], others: Iterable[T]) -> dict[K, T]:
    """Returns the values that are none of some others, compared by identity."""
    # Variables overload `==`, so that `in` would compare their elements.
    other_ids = set(map(id, others))
    left = {}
    for key, value in values.items():
        if id(value) not in other_ids:
            left[key] = value
    return left


def shapes_of(arrays: Mapping[K, Any]) -> dict[K, tuple[int, ...]]:
    """Returns the shapes of variables, arrays or placements."""
    return {key: tuple(array.shape) for key, array in arrays.items()}
