"""Size of rounding errors, and the random noise with which perturbed runs imitate them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Adding n terms one by one errs by up to n / 2 ulps, and by about sqrt(n) ulps where the signs of the errors are
# random. The factor on top is a margin: mostly ten times what rounding does on a mesh, so what rounding does rarely
# there, the perturbed runs do often. A larger one hides more errors, a smaller one reports sound meshes as mismatches.
_NOISE_FACTOR = 4.0
_FLOAT32_EPSILON = float(np.finfo(np.float32).eps)
# Half an ulp, the most that one rounding errs by. That of float32 is left out because the noise factor covers it.
_HALF_ULPS = {"float32": 0.0, "tensorfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Rounding:
    """Relative errors of rounding in a step.

    Attributes:
      noise: of the perturbed runs.
      sums: noise of gradients that no matrix product adds up, where that is larger.
      storage: how far two sides may differ because each rounds the weights and slots that it stores. Float32 has 0:
        its rounding is counted in ulps.
      products: paths whose gradients a matrix product adds up; None: those that end in `kernel`.
    """

    noise: float
    sums: float = 0.0
    storage: float = 0.0
    products: tuple[str, ...] | None = None

    def of_gradient(self, path: str) -> float:
        """Returns the relative noise of a variable's gradient."""
        is_product = path.endswith("kernel") if self.products is None else path in self.products
        return self.noise if is_product else max(self.noise, self.sums)


def rounding_of(terms: int, precision: str = "float32", state: str = "float32") -> Rounding:
    """Returns the errors of a step.

    Args:
      terms: of its longest sum.
      precision: the lowest that it computes in: `float32`, `tensorfloat32`, `float16` or `bfloat16`.
      state: the dtype of stored weights and slots, see `engine.state`.
    """
    root = math.sqrt(max(terms, 1))
    half_ulp = _HALF_ULPS[precision]
    # Matrix products and convolutions add up a kernel's gradient in float32 and round once. All other gradients (of
    # biases, of positions) are added up in a lower precision term by term: their errors grow with the root of the
    # number of terms, at most to the whole gradient. Beyond that, rounding alone decides.
    noise = _NOISE_FACTOR * _FLOAT32_EPSILON * root + half_ulp
    sums = min(1.0, noise + half_ulp * root) if half_ulp else noise
    return Rounding(noise, sums, storage=2.0 * _HALF_ULPS.get(state, 0.0))


def with_noise(values: Array, noise: float, rng: np.random.Generator, least: float = 0.0) -> Array:
    """Adds uniform relative noise to every entry; entries smaller than `least` are scaled by `least`."""
    # In place, and in float32 where that is as good: for large arrays, memory takes as long as the arithmetic.
    noisy = uniform(-noise, noise, values, rng)
    noisy *= np.maximum(np.abs(values), least, dtype=noisy.dtype)
    noisy += values
    return noisy.astype(values.dtype, copy=False)


def uniform(low: float, high: float, like: Array, rng: np.random.Generator) -> Array:
    """Draws an array of another's shape between two numbers; in float32, in half the time of NumPy's `uniform`."""
    drawn = np.asarray(rng.random(like.shape, np.result_type(like.dtype, np.float32)))
    drawn *= high - low
    drawn += low
    return drawn


def weights_with_noise(weights: Mapping[str, Array], noise: float, rng: np.random.Generator) -> dict[str, Array]:
    """Adds noise to weights, relative at least to the size of their layer.

    A bias begins at 0, where relative noise would do nothing; what it is added to is not 0.
    """
    sizes = layer_sizes(weights)
    return {path: with_noise(value, noise, rng, sizes[path]) for path, value in weights.items()}


def layer_sizes(arrays: Mapping[str, Array]) -> dict[str, float]:
    """Returns, by path, the root mean square of all arrays of a path's layer."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for path, value in arrays.items():
        layer = _layer(path)
        sums[layer] = sums.get(layer, 0.0) + inner(value, value)
        counts[layer] = counts.get(layer, 0) + value.size
    return {path: math.sqrt(sums[_layer(path)] / max(counts[_layer(path)], 1)) for path in arrays}


def gradients_with_noise(
    gradients: Mapping[str, Array], rounding: Rounding, rng: np.random.Generator
) -> dict[str, Array]:
    """Adds noise to each gradient, and draws a new one for a gradient that is zero up to rounding.

    The gradient of a bias before a batch normalization is an example: all terms of its sum cancel, and the noise of
    weights and of the examples' losses cancels with them. What is left is the last bits of terms as large as those of
    the layer's other gradients, which another order of the sum draws at random.
    """
    remainders = rounding_remainders(gradients, rounding)
    noisy = {}
    for path, gradient in gradients.items():
        size = remainders[path]
        if 0 < largest(gradient) < size:
            noisy[path] = uniform(-size, size, gradient, rng).astype(gradient.dtype)
        else:
            noisy[path] = with_noise(gradient, rounding.of_gradient(path), rng)
    return noisy


def rounding_remainders(gradients: Mapping[str, Array], rounding: Rounding) -> dict[str, float]:
    """Returns, by path, how large rounding alone may make a gradient whose terms cancel.

    That is the noise of the largest entry of its layer's gradients, which add up terms of the same size.
    """
    by_layer: dict[str, float] = {}
    for path, gradient in gradients.items():
        layer = _layer(path)
        by_layer[layer] = max(largest(gradient), by_layer.get(layer, 0.0))
    return {path: rounding.of_gradient(path) * by_layer[_layer(path)] for path in gradients}


def largest(values: Array) -> float:
    """Returns the largest magnitude of an array's entries; 0 if it has none."""
    return float(np.max(np.abs(values), initial=0.0))


def inner(values: Array, others: Array) -> float:
    """Returns the sum of the products of two arrays' entries, added up in float64 without a copy of either."""
    return float(np.einsum("i,i", values.ravel(), others.ravel(), dtype=np.float64, casting="unsafe"))


def _layer(path: str) -> str:
    return path.rpartition("/")[0]
