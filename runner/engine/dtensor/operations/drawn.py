"""Numbers drawn by a seed, whole on each device: what is drawn split depends on the mesh."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from runner.engine.dtensor.private import STATELESS
from runner.model import scope

Draw = Callable[..., tf.Tensor]


def _whole(stock: Draw) -> Draw:
    """Returns a function that stands for one of TensorFlow's."""

    def draw(*args: object, **kwargs: object) -> tf.Tensor:
        return scope.replicate(stock(*args, **kwargs))

    return draw


uniform = _whole(STATELESS.stateless_random_uniform)
normal = _whole(STATELESS.stateless_random_normal)
truncated_normal = _whole(STATELESS.stateless_truncated_normal)
