"""The noise of perturbed runs: what rounding may do to weights, shares and gradients, and how large it is."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from runner.data.base import Array

# Adding n terms one by one errs by up to n/2 ulps, and by about sqrt(n) where the errors' signs are random; four times
# that is more than any mesh was seen to do.
_NOISE_FACTOR = 4.0
# Half an ulp of a precision below float32: what each rounding errs by at most. Matrix products and convolutions add up
# in float32 and round once; the gradients of all else (biases, positions) are added up in bfloat16 term by term, and
# their errors grow with the root of the terms, up to all of what they are.
HALF_ULPS: Mapping[str, float] = {"float32": 0.0, "bfloat16": 2.0**-8}


def stored(state: str) -> float:
    """Returns what two sides' rounding of a kept value may differ by, relative to it; 0 of float32, counted in ulps.

    Args:
      state: `engine.state`; weights and slots are rounded to bfloat16 where it is that, by half an ulp on each side.
    """
    return 2.0 * HALF_ULPS[state] if state in HALF_ULPS else 0.0


def noise(terms: int, precision: str = "float32", epsilon: float = float(np.finfo(np.float32).eps)) -> float:
    """Returns the noise of perturbed runs: what a float32 sum's order can do, times four, and a lower precision.

    Args:
      terms: length of the longest sum.
      precision: `engine.precision`.
      epsilon: distance of 1 to the next number of the dtype.
    """
    return _NOISE_FACTOR * epsilon * math.sqrt(max(terms, 1)) + HALF_ULPS[precision]


def noise_of_sums(terms: int, precision: str) -> float:
    """Returns the relative noise of gradients that no matrix product adds up, see `noise`; at most 1."""
    return min(1.0, noise(terms, precision) + HALF_ULPS[precision] * math.sqrt(max(terms, 1)))


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
    sizes = layer_sizes(weights)
    return {path: off(value, noise, rng, sizes[path]) for path, value in weights.items()}


def layer_sizes(arrays: Mapping[str, Array]) -> dict[str, float]:
    """Returns, by path, the root mean square of all arrays of a path's layer."""
    squares: dict[str, tuple[float, int]] = {}
    for path, value in arrays.items():
        total, count = squares.get(_layer(path), (0.0, 0))
        squares[_layer(path)] = total + float(np.sum(np.square(value, dtype=np.float64))), count + value.size
    return {path: math.sqrt(squares[_layer(path)][0] / max(squares[_layer(path)][1], 1)) for path in arrays}


def shaken(
    gradients: Mapping[str, Array], noise: float, rng: np.random.Generator, sums: float = 0.0
) -> dict[str, Array]:
    """Rounds each gradient by the noise, and draws again what is nothing but rounding.

    Such is the gradient of a bias before a batch normalization. All terms of its sum cancel, and the noise of
    weights and shares cancels with them: what is left is the last bits of terms as large as those of the layer's
    other gradients.

    Args:
      gradients: by canonical path.
      noise: relative.
      rng: source of the noise.
      sums: relative noise of what is no kernel's, where that is larger: no matrix product adds it up.
    """
    left = cancelling(gradients, noise, sums)
    found = {}
    for path, gradient in gradients.items():
        cancels = 0 < float(np.max(np.abs(gradient), initial=0.0)) < left[path]
        drawn = left[path] * rng.uniform(-1.0, 1.0, gradient.shape)
        found[path] = drawn.astype(gradient.dtype) if cancels else off(gradient, noise_of(path, noise, sums), rng)
    return found


def cancelling(gradients: Mapping[str, Array], noise: float, sums: float = 0.0) -> dict[str, float]:
    """Returns, by path, how large a gradient may be that is nothing but what rounding leaves of terms that cancel.

    That is the noise of the largest entry of its layer's gradients: they add up terms of the same size.

    Args:
      gradients: by canonical path.
      noise: relative.
      sums: relative noise of what is no kernel's, where that is larger.
    """
    layers: dict[str, float] = {}
    for path, gradient in gradients.items():
        size = float(np.max(np.abs(gradient), initial=0.0))
        layers[_layer(path)] = max(size, layers.get(_layer(path), 0.0))
    return {path: noise_of(path, noise, sums) * layers[_layer(path)] for path in gradients}


def noise_of(path: str, noise: float, sums: float) -> float:
    """Returns the relative noise of a variable's gradient: `sums`, where that is larger, of what is no kernel's."""
    return noise if path.endswith("kernel") else max(noise, sums)


def _layer(path: str) -> str:
    return path.rpartition("/")[0]
