"""Random numbers from a seed, replicated.

Values that are drawn under a sharded layout depend on the mesh.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from runner.engine.dtensor.private import STATELESS
from runner.model import scope

Draw = Callable[..., tf.Tensor]


def _replicated(stock: Draw) -> Draw:
    """Returns the replacement of one of TensorFlow's functions.

    It keeps DTensor from sharding the result.
    """

    def draw(*args: object, **kwargs: object) -> tf.Tensor:
        return scope.replicate(stock(*args, **kwargs))

    return draw


uniform = _replicated(STATELESS.stateless_random_uniform)
normal = _replicated(STATELESS.stateless_random_normal)
truncated_normal = _replicated(STATELESS.stateless_truncated_normal)
