"""States with randomly perturbed weights, at which a wrong gradient can't hide.

Where training begins, much is at a kink or in a symmetry. With biases of 0, every black pixel is exactly where a ReLU
bends, so the last bit decides whether it counts, and the gradient of the bias verifies nothing. At a *point*, every
parameter is moved by a seeded normal step of a good share of its layer's size (a bias by its kernel's). Slots are
large enough to count beside the gradient. The points are made once and loaded on both sides, so no training amplifies
the rounding between the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .rounding import Array, layer_sizes, uniform

# How far each parameter is moved from its initial value, as a share of the root mean square of its layer. 0.3 leaves
# kinks and symmetries well behind while the weights keep their scale. Where the loss is not finite there, the next
# smaller share is tried.
SHARES = (0.3, 0.1, 0.03)
# A layer whose size is below `_ZERO_LAYER` was initialized to zero, and a share of that would move nothing. It is
# moved as if it had the size of a common initialization.
_ZERO_LAYER = 1e-3
_COMMON_SIZE = 0.05
# Slots in units of their layer's size, lowest and highest: of values that have no sign, and of others.
_POSITIVE_SLOTS = (0.5, 1.5)
_SIGNED_SLOTS = (-0.5, 0.5)


def steps(done: int) -> list[int]:
    """Returns the step of each point in a training of `done` steps: the last one, and an early one but not the first.

    Step 0 is a special case of Adam's bias correction and of averages, which begin there. Two, so that a gradient that
    is 0 by chance at one is not at both; each costs a step of both sides and of every perturbed run.
    """
    late = max(done - 1, 0)
    return [late, late // 2]


def weights(values: Mapping[str, Array], share: float, rng: np.random.Generator) -> dict[str, Array]:
    """Returns weights a normal step away, of a share of the root mean square of their layer's weights."""
    sizes = layer_sizes(values)
    perturbed = {}
    for path, value in values.items():
        size = sizes[path] if sizes[path] > _ZERO_LAYER else _COMMON_SIZE
        moves = rng.standard_normal(value.shape, np.result_type(value.dtype, np.float32))
        perturbed[path] = (value + share * size * moves).astype(value.dtype)
    return perturbed


def slots(trained: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Returns slots of the sizes that they have at the end of the training, by path.

    Values that are never negative, such as means of squares, are drawn between half and one and a half of the root
    mean square of their layer's slots; others around 0, up to half of it. So no entry is so small that rounding
    decides a step. A mean of gradients stays below the root of their mean square, as centered RMSprop needs. Integers
    stay.
    """
    sizes = layer_sizes(trained)
    values = {}
    for path, value in trained.items():
        if value.dtype.kind == "f":
            low, high = _SIGNED_SLOTS
            if (value >= 0).all():
                low, high = _POSITIVE_SLOTS
            value = uniform(sizes[path] * low, sizes[path] * high, value, rng).astype(value.dtype)
        values[path] = value
    return values
