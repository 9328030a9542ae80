"""Dense layers on TensorFlow Core: tf.Module and DVariable, as the tutorial on distributed training with Core APIs.

https://www.tensorflow.org/guide/core/distribution. One builder serves both DTensor engines: given Keras it builds the
same network of Keras layers, with the same variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.model import mlp, scope


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

    Args:
      keras: `tf_keras` or `keras`; None builds tf.Modules.
      input_shape: (height, width, channel) of one example.
      num_classes: units of the last layer.
      layouts: `d1/kernel` and the like -> DTensor layout; none or empty builds on one device.
      hidden: units of each hidden layer.
      overwrite_second: a slip of the tutorial's code, which sets the second hidden size to the number of classes.
      same_key: as the tutorial, draws every layer from the one key (seed, seed + 1), not each from its own.
      seed: of the initial weights.

    Returns:
      A model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).
    """
    units = [*hidden]
    if overwrite_second and len(units) > 1:
        units[1] = num_classes
    if keras is not None:
        return mlp.explicit(keras, input_shape, num_classes, layouts or {}, units, "relu")
    units.append(num_classes)
    keys = [(seed, seed + 1) if same_key else (seed, index) for index in range(len(units))]
    return _modules(input_shape, units, layouts or {}, keys)


def _modules(
    input_shape: tuple[int, ...], units: Sequence[int], layouts: Mapping[str, Any], keys: Sequence[tuple[int, int]]
) -> Any:
    import tensorflow as tf

    class Dense(tf.Module):  # type: ignore[misc]
        """activation(x @ kernel + bias), (batch, in) -> (batch, out).

        Weights are uniform in +-sqrt(6 / (in + out)) (Glorot and Bengio, 2010), drawn without state from the layer's
        key; biases are zero.
        """

        def __init__(self, index: int, inputs: int, outputs: int, activation: Any) -> None:
            super().__init__(name=f"d{index + 1}")
            self.activation = activation
            limit = (6.0 / (inputs + outputs)) ** 0.5
            self.kernel = variable(f"{self.name}/kernel", _uniform, (inputs, outputs), limit, keys[index])
            self.bias = variable(f"{self.name}/bias", _zeros, (outputs,), limit, keys[index])

        def __call__(self, x: Any) -> Any:
            with self.name_scope:
                return self.activation(tf.add(tf.matmul(scope.as_rows(x, self.kernel), self.kernel), self.bias))

    class Mlp(tf.Module):  # type: ignore[misc]
        """Flattens images and applies the layers in order."""

        losses: tuple[Any, ...] = ()

        def __init__(self, layers: Sequence[Any]) -> None:
            super().__init__(name="mlp")
            self.layers = list(layers)

        def __call__(self, images: Any, training: bool = False) -> Any:
            del training
            size = int(images.shape[1] * images.shape[2] * images.shape[3])
            x = tf.reshape(scope.as_flat(images), (-1, size))
            for layer in self.layers:
                x = layer(x)
            return x

    def variable(path: str, draw: Any, shape: tuple[int, ...], limit: float, key: tuple[int, int]) -> Any:
        def function() -> Any:
            return draw(shape, limit, key)

        if path not in layouts:
            return tf.Variable(function(), name=path)
        return _placed(function, layouts[path], path)

    sizes = [int(input_shape[0] * input_shape[1] * input_shape[2]), *units]
    last = len(units) - 1
    return Mlp(
        [
            Dense(index, sizes[index], sizes[index + 1], tf.identity if index == last else tf.nn.relu)
            for index in range(len(units))
        ]
    )


def _uniform(shape: tuple[int, ...], limit: float, key: tuple[int, int]) -> Any:
    import tensorflow as tf

    return tf.random.stateless_uniform(shape, seed=key, minval=-limit, maxval=limit)


def _zeros(shape: tuple[int, ...], limit: float, key: tuple[int, int]) -> Any:
    import tensorflow as tf

    del limit, key
    return tf.zeros(shape)


def _placed(function: Any, layout: Any, path: str) -> Any:
    """Returns a DVariable of what a function draws, drawn whole: under a sharded layout other numbers come out."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    whole = dtensor.Layout.replicated(layout.mesh, layout.rank)
    value = dtensor.call_with_layout(tf.function(function), whole)
    return dtensor.DVariable(dtensor.relayout(value, layout), name=path.replace("/", "."))
