"""Models as a user has them; on keras_dtensor the same file is run with `import tf_keras as keras` at its top."""

import keras


def mobilenet_v2(input_shape, num_classes, **_):
    build = keras.applications.MobileNetV2
    return build(weights=None, input_shape=tuple(input_shape), classes=num_classes, classifier_activation=None)


class Positions(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="uniform", name="table")

    def call(self, x):
        return x + self.table


def transformer(inputs, num_classes, width=16, **_):
    spec = next(iter(inputs.values()))
    words = keras.Input(spec.shape, dtype=spec.dtype)
    x = keras.layers.Embedding(20, width, name="words")(words)
    x = Positions(name="places")(x)
    attended = keras.layers.MultiHeadAttention(2, width // 2, dropout=0.1, name="attention")(x, x)
    x = keras.layers.LayerNormalization(name="norm1")(x + attended)
    y = keras.layers.Dense(2 * width, activation="gelu", name="up")(x)
    y = keras.layers.Dropout(0.1, name="drop")(keras.layers.Dense(width, name="down")(y))
    x = keras.layers.LayerNormalization(name="norm2")(x + y)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(words, keras.layers.Dense(num_classes, name="logits")(x))


def bidirectional(input_shape, num_classes, **_):
    first = keras.layers.Bidirectional(keras.layers.LSTM(8, return_sequences=True))
    return _sequence(input_shape, num_classes, first, keras.layers.Bidirectional(keras.layers.GRU(8)))


def stateful_lstm(input_shape, num_classes, **_):
    inputs = keras.Input(batch_shape=(32, *input_shape))
    x = keras.layers.LSTM(12, stateful=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))


def _sequence(input_shape, num_classes, *layers):
    return keras.Sequential([keras.Input(input_shape), *layers, keras.layers.Dense(num_classes)])


def words_lstm(inputs, num_classes, **_):
    """Masked padding: number 0 is no word."""
    spec = next(iter(inputs.values()))
    words = keras.Input(spec.shape, dtype=spec.dtype)
    x = keras.layers.Embedding(20, 8, mask_zero=True)(words)
    x = keras.layers.LSTM(12)(x)
    return keras.Model(words, keras.layers.Dense(num_classes)(x))


def spectral(input_shape, num_classes, **_):
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.SpectralNormalization(keras.layers.Conv2D(6, 3, activation="relu")),
        keras.layers.Flatten(),
        keras.layers.SpectralNormalization(keras.layers.Dense(16, activation="relu")),
    )


def group_normalization(input_shape, num_classes, **_):
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.Conv2D(8, 3, padding="same"),
        keras.layers.GroupNormalization(4),
        keras.layers.Activation("relu"),
        keras.layers.Conv2D(8, 3, strides=2),
        keras.layers.GroupNormalization(8),
        keras.layers.Flatten(),
    )


class Nested(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.body = keras.Sequential(
            [
                keras.layers.Flatten(),
                keras.layers.Dense(24, activation="relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(16, activation="relu"),
            ]
        )
        self.head = keras.layers.Dense(num_classes)

    def call(self, x):
        return self.head(self.body(x))


def sequential_inside(num_classes, **_):
    return Nested(num_classes)


def mixed_precision(input_shape, num_classes, **_):
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.Conv2D(8, 3, activation="relu", dtype="mixed_bfloat16"),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu", dtype="mixed_bfloat16"),
        keras.layers.Activation("linear", dtype="float32"),
    )


class Counted(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
        return x * self.scale


def integer_variable(input_shape, num_classes, **_):
    return _sequence(input_shape, num_classes, keras.layers.Flatten(), Counted(), keras.layers.Dense(16, "relu"))


def preprocessing(input_shape, num_classes, **_):
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.Resizing(24, 24),
        keras.layers.CenterCrop(20, 20),
        keras.layers.Rescaling(2.0, offset=-1.0),
        keras.layers.Normalization(mean=0.1, variance=0.5),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
    )


def augmentation(input_shape, num_classes, **_):
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.RandomFlip("horizontal"),
        keras.layers.RandomTranslation(0.1, 0.1),
        keras.layers.RandomRotation(0.05),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
    )


def relu_bias(input_shape, num_classes, **_):
    """The model whose bias gradient no run near its start can prove: black pixels and zero biases."""
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.Conv2D(8, 3, activation="relu", name="conv"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
    )


def layer_norm_axis(input_shape, num_classes, **_):
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.LayerNormalization(axis=1),
        keras.layers.Conv2D(6, 3, activation="relu"),
        keras.layers.LayerNormalization(axis=[1, 2]),
        keras.layers.Flatten(),
    )


def dropout_twice(input_shape, num_classes, **_):
    inputs = keras.Input(input_shape)
    drop = keras.layers.Dropout(0.5)
    x = keras.layers.Dense(32, activation="relu")(keras.layers.Flatten()(inputs))
    x = keras.layers.Dense(32, activation="relu")(drop(drop(x)))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(drop(x)))


def constraints(input_shape, num_classes, **_):
    limit = keras.constraints.MaxNorm(0.1)
    return _sequence(
        input_shape,
        num_classes,
        keras.layers.Flatten(),
        keras.layers.Dense(24, "relu", kernel_constraint=limit, bias_constraint=keras.constraints.NonNeg()),
    )
