"""Models as users of Keras 3 have them: `import keras` at the top, nothing of what the builder is given but its sizes.

Smooth, so that a difference of gradients is no kink that rounding crossed; what comes in is an image (28, 28, 1).
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

Size = tuple[int, ...]


def _model(shape: Size, classes: int, *stack: Any) -> keras.Model:
    return keras.Sequential([keras.Input(shape), *stack, layers.Flatten(), layers.Dense(classes)])


def attention(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Attention with dropout over the rows of an image, stock all through."""
    image = keras.Input(input_shape)
    x = layers.Dense(16)(layers.Reshape(input_shape[:2])(image))
    y = layers.MultiHeadAttention(2, 8, dropout=0.3)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.GroupQueryAttention(8, 4, 2, dropout=0.2)(x, x)
    x = layers.Dropout(0.2)(layers.Add()([x, y]))
    y = layers.Attention(dropout=0.2)([x, x])
    x = layers.AlphaDropout(0.1)(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling1D()(layers.RMSNormalization()(x))
    return keras.Model(image, layers.Dense(num_classes)(x))


def recurrent(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Embedding of pixels by their gray, LSTM with dropout, GRU, both ways, and a simple one."""
    levels = layers.Discretization([0.2, 0.4, 0.6, 0.8])
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Cropping2D(((10, 14), (4, 4))),
            layers.Reshape((4, 20)),
            levels,
            layers.TimeDistributed(layers.Embedding(5, 3)),
            layers.TimeDistributed(layers.Flatten()),
            layers.Bidirectional(layers.LSTM(6, return_sequences=True, dropout=0.2, recurrent_dropout=0.1)),
            layers.GRU(7, return_sequences=True),
            layers.TimeDistributed(layers.Dropout(0.3)),
            layers.Bidirectional(layers.GRU(4, return_sequences=True), merge_mode="sum"),
            layers.SimpleRNN(5),
            layers.Dense(num_classes),
        ]
    )


def convolutions(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Convolutions of every kind, with strides, dilation, groups and both paddings."""
    return _model(
        input_shape,
        num_classes,
        layers.AveragePooling2D(2),
        layers.Conv2D(6, 3, strides=2, padding="same", activation="tanh"),
        layers.SeparableConv2D(8, 3, strides=2, padding="same", depth_multiplier=2, activation="tanh"),
        layers.Conv2D(8, 3, groups=2, padding="same", activation="tanh"),
        layers.Conv2D(8, 3, dilation_rate=2, padding="same", activation="tanh"),
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, activation="tanh"),
        layers.SpectralNormalization(layers.Conv2D(8, 1, activation="tanh")),
        layers.GroupNormalization(4),
        layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="tanh"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(2),
        layers.SpatialDropout2D(0.2),
    )


def one_and_three_dims(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Convolutions and pooling over one dim and over three."""
    image = keras.Input(input_shape)
    rows = layers.Reshape(input_shape[:2])(image)
    x = layers.Conv1D(6, 3, dilation_rate=2, padding="causal", activation="tanh")(rows)
    x = layers.SeparableConv1D(6, 3, strides=2, padding="same", activation="tanh")(x)
    x = layers.Conv1DTranspose(4, 3, padding="same", activation="tanh")(x)
    x = layers.DepthwiseConv1D(3, activation="tanh")(layers.BatchNormalization()(x))
    y = layers.Reshape((7, 8, 14, 1))(image)
    y = layers.Conv3D(4, 3, strides=2, padding="same", activation="tanh")(y)
    y = layers.Conv3D(4, 2, dilation_rate=1, groups=2, padding="same", activation="tanh")(y)
    y = layers.AveragePooling3D((2, 2, 1), padding="same")(layers.BatchNormalization()(y))
    x = layers.Concatenate()([layers.Flatten()(x), layers.Flatten()(y)])
    return keras.Model(image, layers.Dense(num_classes)(layers.GaussianNoise(0.1)(x)))


def channels_first(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Images whose channels come first."""
    form = {"data_format": "channels_first", "padding": "same"}
    return _model(
        input_shape,
        num_classes,
        layers.Permute((3, 1, 2)),
        layers.Conv2D(6, 3, strides=2, activation="tanh", **form),
        layers.BatchNormalization(axis=1),
        layers.SeparableConv2D(4, 3, activation="tanh", **form),
        layers.AveragePooling2D(2, **form),
    )


def augmented(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Preprocessing and augmentation inside the model, as in Keras's guides."""
    normal = layers.Normalization(mean=0.3, variance=0.2)
    image = keras.Input(input_shape)
    x = layers.Rescaling(2.0, offset=-0.5)(normal(image))
    x = layers.RandomFlip("horizontal")(x)
    x = layers.RandomRotation(0.1, fill_mode="constant")(x)
    x = layers.RandomTranslation(0.1, 0.1)(x)
    x = layers.RandomZoom(0.1)(x)
    x = layers.RandomContrast(0.2)(layers.Resizing(14, 14)(layers.CenterCrop(24, 24)(x)))
    x = layers.Dense(16, activation="tanh")(layers.Flatten()(x))
    kinds = layers.Discretization([10.0, 20.0, 40.0])(ops.sum(image, axis=(1, 2)))
    kinds = layers.CategoryEncoding(4, output_mode="multi_hot")(kinds)
    return keras.Model(image, layers.Dense(num_classes)(layers.Concatenate()([x, kinds])))


class Noisy(keras.layers.Layer):
    """A user's random layer, with a generator of its own and a variable that counts its calls."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.generator = keras.random.SeedGenerator(7)

    def build(self, input_shape: Size) -> None:
        """Makes a whole number and a flag beside what is trained."""
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        self.scale = self.add_weight(shape=input_shape[-1:], initializer="ones", name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns the inputs, scaled, with noise while training."""
        if training:
            self.calls.assign(self.calls + 1)
            x = x + 0.1 * keras.random.normal(ops.shape(x), seed=self.generator)
            x = keras.random.dropout(x, 0.1, seed=self.generator)
        return x * self.scale


class Subclassed(keras.Model):
    """A model with a Sequential inside, layers in a list, and one that is called twice."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = keras.Sequential([layers.Flatten(), layers.Dense(24, activation="tanh"), Noisy()])
        self.blocks = [
            keras.Sequential([layers.Dense(24, activation="tanh"), layers.BatchNormalization()]) for _ in range(2)
        ]
        self.drop = layers.Dropout(0.5)
        self.head = layers.Dense(classes)

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns logits; Keras tells the layers inside of `training`."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + self.drop(block(x))
        return self.head(self.drop(x, training=training))


def subclassed(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """The class above, not yet built."""
    del input_shape
    return Subclassed(num_classes)


class Untold(keras.Model):
    """A model whose call takes no `training`: Keras's `fit` then leaves its layers as they are in an evaluation."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = keras.Sequential([layers.Flatten(), layers.Dropout(0.5), layers.BatchNormalization()])
        self.head = layers.Dense(classes)

    def call(self, x: Any) -> Any:
        """Returns logits."""
        return self.head(self.net(x))


def untold(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """The class above, not yet built."""
    del input_shape
    return Untold(num_classes)


def mixed(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Layers of mixed precision among others."""
    return _model(
        input_shape,
        num_classes,
        layers.Conv2D(6, 3, strides=2, activation="tanh", use_bias=False, dtype="mixed_bfloat16"),
        layers.BatchNormalization(dtype="mixed_bfloat16"),
        layers.Dropout(0.2, dtype="mixed_bfloat16"),
        layers.Flatten(),
        layers.Dense(12, activation="tanh", dtype="mixed_bfloat16"),
        layers.Dense(12, activation="tanh"),
    )


def twice(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """One dropout layer called twice, and another of the same name in a model inside; noise shapes; a rate of 1."""
    image = keras.Input(input_shape)
    drop = layers.Dropout(0.5, name="drop")
    x = drop(drop(layers.Dense(16, activation="tanh")(layers.Flatten()(image))))
    inner = keras.Sequential([keras.Input((16,)), layers.Dropout(0.5, name="drop")])
    rows = layers.Dropout(0.4, noise_shape=(None, 1, 28))(layers.Reshape(input_shape[:2])(image))
    none = layers.Dropout(1.0)(layers.Flatten()(image))
    x = layers.Concatenate()([inner(x), layers.GlobalAveragePooling1D()(rows), none])
    return keras.Model(image, layers.Dense(num_classes)(x))


def nested(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """Two models of equal names inside, one in the other, and a layer of that name outside of both."""
    image = keras.Input(input_shape)
    x = layers.Dense(16, activation="tanh", name="dense")(layers.Flatten()(image))
    deep = keras.Sequential([keras.Input((16,)), layers.Dense(16, activation="tanh", name="dense")], name="deep")
    inner = keras.Input((16,))
    outer = keras.Model(inner, layers.Dense(16, activation="tanh", name="dense")(deep(inner)), name="outer")
    return keras.Model(image, layers.Dense(num_classes, name="head")(outer(x)))


def application(input_shape: Size, num_classes: int, name: str, **_: Any) -> keras.Model:
    """A network of keras.applications, by name, on images of 32 pixels by 32, with swish in the place of ReLU.

    Among a million activations, some are within rounding of a kink of ReLU6. The gradient behind it is one of two
    values, on one device too: two programs of MobileNetV2 were 9.6e-2 apart in 83 of its arrays. Swish has no kinks.
    """
    image = keras.Input(input_shape)
    x = layers.Concatenate()([layers.ZeroPadding2D(2)(image)] * 3)
    make = getattr(keras.applications, name)
    made = make(weights=None, input_shape=(32, 32, 3), classes=num_classes, classifier_activation=None)
    return keras.Model(image, keras.models.clone_model(made, clone_function=_smooth)(x))


def _smooth(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a layer like another one, or swish if that is a ReLU."""
    if isinstance(layer, layers.ReLU):
        return layers.Activation("swish", name=layer.name)
    copied: keras.layers.Layer = type(layer).from_config(layer.get_config())
    return copied


def stateful(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """An LSTM that keeps its state from batch to batch, which no shuffled training can want."""
    return keras.Sequential(
        [
            keras.Input(batch_shape=(8, *input_shape)),
            layers.Reshape(input_shape[:2]),
            layers.LSTM(4, stateful=True),
            layers.Dense(num_classes),
        ]
    )


def hashed(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """A layer that Keras 3 computes in TensorFlow, whatever its backend."""

    class Hashed(keras.Model):
        """Whole numbers of pixels, hashed."""

        def __init__(self) -> None:
            super().__init__()
            self.bins = layers.Hashing(4)
            self.head = layers.Dense(num_classes)

        def call(self, x: Any) -> Any:
            """Returns logits."""
            return self.head(layers.Flatten()(x))

    del input_shape
    return Hashed()


class Uneven(keras.layers.Layer):
    """A layer that moves its generator by what the generator holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(7)

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns the inputs with one number added while training."""
        return x + keras.random.normal((), seed=self.generator.next(ordered=False)) if training else x


class Unseeded(keras.layers.Layer):
    """A layer that draws from no generator of its own."""

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns the inputs with one number added while training."""
        return x + keras.random.normal(()) if training else x


def uneven(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """The layer of uneven draws."""
    return _model(input_shape, num_classes, Uneven())


def unseeded(input_shape: Size, num_classes: int, **_: Any) -> keras.Model:
    """The layer without a generator."""
    return _model(input_shape, num_classes, Unseeded())
