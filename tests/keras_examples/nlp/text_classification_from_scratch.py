"""Reviews by a convnet over embedded words."""

import numpy as np

from tests.keras_examples.spec import Spec, by_split

SPEC = Spec(
    title="Text classification from scratch",
    overrides=["optimizer=adam", "task.classes=2"],
    lost=["loss: softmax over two classes in place of one logit", "text is numbers already"],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = layers.Embedding(64, 16, name="embedding")(tokens)
    x = layers.Dropout(0.5)(x)
    x = layers.Conv1D(16, 7, strides=3, activation="relu", name="conv1")(x)
    x = layers.Conv1D(16, 7, strides=3, activation="relu", name="conv2")(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dense(16, activation="relu", name="hidden")(x)
    return keras.Model(tokens, layers.Dense(num_classes, name="logits")(layers.Dropout(0.5)(x)))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 96).astype("int32")
    tokens = rng.integers(1, 48, (96, 64)) + 16 * label[:, None]
    return by_split({"tokens": tokens.astype("int32"), "label": label})
