"""Dense layers as tf.Modules, with variables on one device or with DTensor layouts. Imports TensorFlow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.model import scope

Activation = Callable[[tf.Tensor], tf.Tensor]
Layouts = Mapping[str, dtensor.Layout]


class Dense(tf.Module):  # type: ignore[misc]
    """activation(x @ kernel + bias), (batch, in) -> (batch, out).

    Weights are uniform in +-sqrt(6 / (in + out)) (Glorot and Bengio, 2010), drawn by a stateless generator from the
    layer's key; biases are zero.
    """

    def __init__(
        self, name: str, sizes: tuple[int, int], activation: Activation, key: tuple[int, int], layouts: Layouts
    ) -> None:
        super().__init__(name=name)
        self.activation = activation
        limit = (6.0 / sum(sizes)) ** 0.5

        def kernel() -> tf.Tensor:
            return tf.random.stateless_uniform(sizes, seed=key, minval=-limit, maxval=limit)

        self.kernel = _variable(f"{name}/kernel", kernel, layouts)
        self.bias = _variable(f"{name}/bias", lambda: tf.zeros(sizes[1:]), layouts)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the layer's outputs (batch, out)."""
        with self.name_scope:
            x = scope.as_rows(x, self.kernel)
            return self.activation(tf.add(tf.matmul(x, self.kernel), self.bias))


class Mlp(tf.Module):  # type: ignore[misc]
    """Flattens examples and applies the layers in order."""

    losses: tuple[tf.Tensor, ...] = ()

    def __init__(self, layers: Sequence[Dense]) -> None:
        super().__init__(name="mlp")
        self.layers = list(layers)

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns (batch, units of the last layer); `training` changes nothing here."""
        del training
        x = tf.reshape(inputs, (-1, math.prod(inputs.shape[1:])))
        for layer in self.layers:
            x = layer(x)
        return x


def mlp(input_shape: Sequence[int], units: Sequence[int], layouts: Layouts, keys: Sequence[tuple[int, int]]) -> Mlp:
    """Builds dense layers d1, d2, ..., all but the last with ReLU."""
    sizes = [math.prod(input_shape), *units]
    layers = []
    for index, (width_in, width_out) in enumerate(itertools.pairwise(sizes)):
        activation = tf.nn.relu
        if index == len(units) - 1:
            activation = tf.identity
        layers.append(Dense(f"d{index + 1}", (width_in, width_out), activation, keys[index], layouts))
    return Mlp(layers)


def _variable(path: str, draw: Callable[[], tf.Tensor], layouts: Layouts) -> tf.Variable:
    if path not in layouts:
        return tf.Variable(draw(), name=path)
    layout = layouts[path]
    # Drawn replicated and then sharded: DTensor draws other numbers under a sharded layout, so the initial weights
    # would depend on the mesh.
    replicated = dtensor.Layout.replicated(layout.mesh, layout.rank)
    value = dtensor.call_with_layout(tf.function(draw), replicated)
    return dtensor.DVariable(dtensor.relayout(value, layout), name=path.replace("/", "."))
