"""Arrays by path on the host, in plain NumPy: some of them, or with other paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .rounding import Array, Rounding, largest, rounding_remainders

# Gradients below this many times what rounding may leave of cancelled terms are tried for being no more than that.
_TINY = 10.0


def keyed(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns arrays with a prefix before their paths."""
    return {f"{prefix}/{path}": value for path, value in arrays.items()}


def below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the arrays whose paths have a prefix, without it: the inverse of `keyed`."""
    start = f"{prefix}/"
    return {path.removeprefix(start): value for path, value in arrays.items() if path.startswith(start)}


def chosen(arrays: Mapping[str, Array], paths: Iterable[str]) -> dict[str, Array]:
    """Returns the arrays of these paths, in their order."""
    return {path: arrays[path] for path in paths}


def indexed(arrays: Mapping[str, Array], index: Any) -> dict[str, Array]:
    """Returns what each array has at an index."""
    return {path: value[index] for path, value in arrays.items()}


def are_finite(arrays: Iterable[Array]) -> bool:
    """Returns whether no entry is NaN or Inf."""
    return all(np.isfinite(value).all() for value in arrays)


def tiny(gradients: Mapping[str, Array], rounding: Rounding) -> dict[str, Array]:
    """Returns the gradients that may be no more than what rounding leaves of terms that cancel."""
    remainders = rounding_remainders(gradients, rounding)
    found = {}
    for path, gradient in gradients.items():
        if 0 < largest(gradient) < _TINY * remainders[path]:
            found[path] = gradient
    return found
