"""The noise of perturbed runs: what rounding may do to weights, shares and gradients. Plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from runner.data.base import Array


def off(values: Array, noise: float, rng: np.random.Generator, least: float = 0.0) -> Array:
    """Moves every entry at random by the noise, relative to itself or to `least`, whichever is larger."""
    moved = noise * rng.uniform(-1.0, 1.0, values.shape) * np.maximum(np.abs(values), least)
    return (values + moved).astype(values.dtype)


def off_weights(weights: Mapping[str, Array], noise: float, rng: np.random.Generator) -> dict[str, Array]:
    """Moves weights by the noise, relative to those of their layer: a bias begins at 0, what it is added to does not.

    Args:
      weights: by canonical path.
      noise: relative.
      rng: source of the noise.
    """
    squares: dict[str, list[Array]] = {}
    for path, value in weights.items():
        squares.setdefault(_layer(path), []).append(np.square(value, dtype=np.float64).ravel())
    sizes = {layer: math.sqrt(float(np.concatenate(parts).mean())) for layer, parts in squares.items()}
    return {path: off(value, noise, rng, sizes[_layer(path)]) for path, value in weights.items()}


def shaken(
    gradients: Mapping[str, Array], noise: float, rng: np.random.Generator, sums: float = 0.0
) -> dict[str, Array]:
    """Rounds each gradient by the noise, and draws anew what is nothing but rounding.

    Such is the gradient of a bias before a batch normalization. All terms of its sum cancel, and the noise of
    weights and shares cancels with them: what is left is the last bits of terms as large as those of the layer's
    other gradients.

    Args:
      gradients: by canonical path.
      noise: relative.
      rng: source of the noise.
      sums: relative noise of what is no kernel's, where that is larger: no matrix product adds it up.
    """
    sizes = {path: float(np.max(np.abs(gradient), initial=0.0)) for path, gradient in gradients.items()}
    found = {}
    for path, gradient in gradients.items():
        own = noise if path.endswith("kernel") else max(noise, sums)
        least = own * max(size for other, size in sizes.items() if _layer(other) == _layer(path))
        cancels = 0 < sizes[path] < least
        drawn = least * rng.uniform(-1.0, 1.0, gradient.shape) if cancels else off(gradient, own, rng)
        found[path] = drawn.astype(gradient.dtype)
    return found


def _layer(path: str) -> str:
    return path.rpartition("/")[0]
