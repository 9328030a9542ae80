"""Models as users of tf_keras have them: `import tf_keras` at the top, nothing of what the builder is given but sizes.

Smooth, so that a difference of gradients is no kink that rounding crossed.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras import layers

Shape = tuple[int, ...]


def convolutions(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """Convolutions with strides and both paddings, normalization and pooling; (8, 8, 3)."""
    return tf_keras.Sequential(
        [
            tf_keras.Input(input_shape),
            layers.Rescaling(2.0, 0.1),
            layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.1, 0.9, 1.0]),
            layers.Conv2D(6, 3, padding="same", activation="tanh"),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="tanh"),
            layers.GroupNormalization(4),
            layers.BatchNormalization(center=False),  # a shift would be nothing to the normalization below
            layers.AveragePooling2D(3, 2, padding="same"),
            layers.SpatialDropout2D(0.2),
            layers.LayerNormalization(axis=1),
            layers.ZeroPadding2D(1),
            layers.UpSampling2D(2),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(num_classes, name="head"),
        ]
    )


def one_dim(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """Convolutions and pooling over one dim; (8, 8, 3)."""
    image = tf_keras.Input(input_shape)
    rows = layers.Reshape((input_shape[0], -1))(image)
    x = layers.Conv1D(6, 3, padding="causal", activation="tanh")(rows)
    x = layers.AveragePooling1D(2, padding="same")(layers.MaxPooling1D(2, 1, padding="same")(x))
    return tf_keras.Model(image, layers.Dense(num_classes, name="head")(layers.Flatten()(x)))


def attention(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """Attention with dropout, one dropout called twice, two of one name; (8, 6)."""
    image = tf_keras.Input(input_shape)
    drop = layers.Dropout(0.3, name="drop")
    x = layers.Dense(16)(image)
    x = drop(drop(x))
    y = layers.MultiHeadAttention(2, 8, dropout=0.3)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    x = layers.UnitNormalization()(x)
    y = layers.Attention(dropout=0.2)([x, x])
    x = layers.Add()([x, y])
    return tf_keras.Model(image, layers.Dense(num_classes, name="head")(layers.GlobalAveragePooling1D()(x)))


class _Block(tf_keras.Model):  # type: ignore[misc]
    """A subclassed model that holds a Sequential, a functional model and a list of layers."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = tf_keras.Sequential([layers.Dense(6, "tanh", name="inner"), layers.Dense(5, "tanh", name="next")])
        made = tf_keras.Input((5,))
        self.graph = tf_keras.Model(made, layers.Dense(4, "tanh", name="inner")(made))
        self.several = [layers.Dense(3, "tanh"), layers.Dense(num_classes, name="head")]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the logits."""
        x = self.graph(self.net(x))
        for layer in self.several:
            x = layer(x)
        return x


def subclassed(num_classes: int, **_: Any) -> tf_keras.Model:
    """A subclassed model of vectors."""
    return _Block(num_classes)


def nested(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """Two nested functional models with equal names inside; (5,)."""

    def part(name: str, size: int, units: int) -> tf_keras.Model:
        made = tf_keras.Input((size,))
        return tf_keras.Model(made, layers.Dense(units, "tanh", name="inner")(made), name=name)

    image = tf_keras.Input(input_shape)
    x = part("right", 6, 4)(part("left", input_shape[0], 6)(image))
    return tf_keras.Model(image, layers.Dense(num_classes, name="head")(x))


class _Scaled(layers.Conv2D):  # type: ignore[misc]
    """A user's subclass of a stock layer, which calls it."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns half the convolution."""
        return 0.5 * super().call(inputs)


def own_layers(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """A user's own layers; (8, 8, 3)."""
    image = tf_keras.Input(input_shape)
    x = _Scaled(4, 3, activation="tanh")(image)
    x = layers.Lambda(lambda y: tf.nn.avg_pool2d(y, 2, 2, "VALID"))(x)
    return tf_keras.Model(image, layers.Dense(num_classes, name="head")(layers.Flatten()(x)))


def _not_taken(image: tf_keras.Input, layer: tf_keras.layers.Layer, num_classes: int) -> tf_keras.Model:
    return tf_keras.Model(image, layers.Dense(num_classes, name="head")(layers.Flatten()(layer(image))))


def depthwise(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """A layer that DTensor can't compute; (8, 8, 3)."""
    return _not_taken(tf_keras.Input(input_shape), layers.DepthwiseConv2D(3), num_classes)


def dilated(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """Options of a layer that DTensor can't compute; (8, 8, 3)."""
    return _not_taken(tf_keras.Input(input_shape), layers.Conv2D(2, 3, dilation_rate=2), num_classes)


def wrapped(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """A layer that DTensor can't compute, within another; (8, 6)."""
    return _not_taken(tf_keras.Input(input_shape), layers.Bidirectional(layers.GRU(2)), num_classes)


def noisy(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """A layer that draws other numbers than a mask; (8, 6)."""
    return _not_taken(tf_keras.Input(input_shape), layers.GaussianNoise(0.1), num_classes)


def mixed(input_shape: Shape, num_classes: int, **_: Any) -> tf_keras.Model:
    """A layer of mixed precision; (8, 6)."""
    return _not_taken(tf_keras.Input(input_shape), layers.Dense(2, dtype="mixed_bfloat16"), num_classes)


# What is split over an axis `model`, by model; all others split the last kernel.
SPLIT: dict[str, dict[str, list[str | None]]] = {
    "convolutions": {"conv2d/kernel": [None, None, None, "model"], "head/kernel": ["model", None]},
    "subclassed": {"net/inner/kernel": [None, "model"], "several/1/bias": ["model"]},
    "nested": {"left/inner/kernel": [None, "model"], "right/inner/kernel": ["model", None]},
}
SHAPES: dict[str, Shape] = {
    "convolutions": (8, 8, 3),
    "one_dim": (8, 8, 3),
    "attention": (8, 6),
    "subclassed": (5,),
    "nested": (5,),
    "noisy": (8, 6),
    "mixed": (8, 6),
    "own_layers": (8, 8, 3),
    "depthwise": (8, 8, 3),
    "dilated": (8, 8, 3),
    "wrapped": (8, 6),
}
