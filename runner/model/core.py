"""The MLP of TensorFlow's tutorial on distributed training with Core APIs: tf.Module and DVariable, without Keras.

https://www.tensorflow.org/guide/core/distribution. One builder serves both DTensor engines: called with Keras it
builds the same network from Keras layers, with the same variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.model import mlp


def build(
    keras: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    layouts: Mapping[str, Any] | None = None,
    hidden: Sequence[int] = (700, 500),
    overwrite_second: bool = False,
    same_key: bool = False,
    seed: int = 0,
) -> Any:
    """Builds an MLP: ReLU(784 x 700), ReLU(700 x 500), logits(500 x 10).

    Returns:
      A model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).
    """
    units = [*hidden]
    if overwrite_second and len(units) > 1:
        units[1] = num_classes
    if keras is not None:
        return mlp.explicit(keras, input_shape, num_classes, layouts or {}, units, "relu")
    units.append(num_classes)
    keys = [(seed, seed + 1)] * len(units)
    if not same_key:
        keys = [(seed, index) for index in range(len(units))]
    # Imported here: engine=jax calls this builder with a Keras, and may run without TensorFlow.
    from runner.model import core_modules

    return core_modules.mlp(input_shape, units, layouts or {}, keys)
