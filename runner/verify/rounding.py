"""Size of rounding errors, and the random noise with which perturbed runs imitate them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from runner.data.base import Array

# Adding n terms one by one errs by up to n / 2 ulps, and by about sqrt(n) ulps where the signs of the errors are
# random. The factor on top is a margin: mostly ten times what rounding does on a mesh, so what rounding does rarely
# there, the perturbed runs do often. A larger one hides more errors, a smaller one reports sound meshes as mismatches.
_NOISE_FACTOR = 4.0
_FLOAT32_EPSILON = float(np.finfo(np.float32).eps)
# Half an ulp of a precision below float32, the most that one rounding errs by. Float32 itself is 0 here because the
# noise factor covers it. Matrix products and convolutions add up in float32 and round once. All other gradients (of
# biases, of positions) are added up in bfloat16 term by term: their errors grow with the root of the number of terms.
HALF_ULPS: Mapping[str, float] = {"float32": 0.0, "bfloat16": 2.0**-8}


def storage_rounding(state: str) -> float:
    """Returns how far two sides may differ because each rounds what it stores, relative to the stored value.

    With `bfloat16` as `engine.state`, both sides round weights and slots by half an ulp each. Otherwise they are
    stored in float32, whose rounding is counted in ulps: 0.
    """
    return 2.0 * HALF_ULPS.get(state, 0.0)


def noise(terms: int, precision: str = "float32") -> float:
    """Returns the relative noise of perturbed runs: 4 eps sqrt(terms), and half an ulp of a lower precision."""
    return _NOISE_FACTOR * _FLOAT32_EPSILON * math.sqrt(max(terms, 1)) + HALF_ULPS[precision]


def noise_of_sums(terms: int, precision: str) -> float:
    """Returns the relative noise of gradients that no matrix product adds up, see `noise`.

    It is at most 1: an error of a whole gradient. Beyond that, rounding alone decides.
    """
    term_by_term = HALF_ULPS[precision] * math.sqrt(max(terms, 1))
    return min(1.0, noise(terms, precision) + term_by_term)


def with_noise(values: Array, noise: float, rng: np.random.Generator, least: float = 0.0) -> Array:
    """Adds uniform relative noise to every entry; entries smaller than `least` are scaled by `least`."""
    sizes = np.maximum(np.abs(values), least)
    offsets = noise * rng.uniform(-1.0, 1.0, values.shape) * sizes
    return (values + offsets).astype(values.dtype)


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
        sums[layer] = sums.get(layer, 0.0) + float(np.sum(np.square(value, dtype=np.float64)))
        counts[layer] = counts.get(layer, 0) + value.size
    return {path: math.sqrt(sums[_layer(path)] / max(counts[_layer(path)], 1)) for path in arrays}


def gradients_with_noise(
    gradients: Mapping[str, Array], noise: float, rng: np.random.Generator, sums: float = 0.0
) -> dict[str, Array]:
    """Adds noise to each gradient, and draws a new one for a gradient that is zero up to rounding.

    The gradient of a bias before a batch normalization is an example: all terms of its sum cancel, and the noise of
    weights and of the examples' losses cancels with them. What is left is the last bits of terms as large as those of
    the layer's other gradients, which another order of the sum draws at random.

    `sums` is the noise of what is not a kernel's, where that is larger: no matrix product adds it up.
    """
    remainders = rounding_remainders(gradients, noise, sums)
    noisy = {}
    for path, gradient in gradients.items():
        # Drawn for every gradient, used or not: the tables of results depend on the order of the draws.
        remainder = remainders[path] * rng.uniform(-1.0, 1.0, gradient.shape)
        if 0 < largest(gradient) < remainders[path]:
            noisy[path] = remainder.astype(gradient.dtype)
        else:
            noisy[path] = with_noise(gradient, noise_of(path, noise, sums), rng)
    return noisy


def rounding_remainders(gradients: Mapping[str, Array], noise: float, sums: float = 0.0) -> dict[str, float]:
    """Returns, by path, how large rounding alone may make a gradient whose terms cancel; arguments as above.

    That is the noise of the largest entry of its layer's gradients, which add up terms of the same size.
    """
    by_layer: dict[str, float] = {}
    for path, gradient in gradients.items():
        layer = _layer(path)
        by_layer[layer] = max(largest(gradient), by_layer.get(layer, 0.0))
    return {path: noise_of(path, noise, sums) * by_layer[_layer(path)] for path in gradients}


def noise_of(path: str, noise: float, sums: float) -> float:
    """Returns the relative noise of a variable's gradient; of what is not a kernel, at least `sums`.

    A matrix product or convolution adds up the gradient of a kernel, in float32.
    """
    return noise if path.endswith("kernel") else max(noise, sums)


def largest(values: Array) -> float:
    """Returns the largest magnitude of an array's entries; 0 if it has none."""
    return float(np.max(np.abs(values), initial=0.0))


def _layer(path: str) -> str:
    return path.rpartition("/")[0]
