"""Series of one sensor by a fully convolutional network."""

import numpy as np

from tests.keras_examples.spec import Spec, by_split

SPEC = Spec(
    title="Timeseries classification from scratch",
    overrides=["optimizer=adam", "task.classes=2"],
    lost=["callbacks: learning rate reduced on a plateau, early stopping"],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    series = keras.Input(input_shape)
    x = series
    for block in range(3):
        x = layers.Conv1D(16, 3, padding="same", name=f"conv{block}")(x)
        x = layers.BatchNormalization(name=f"norm{block}")(x)
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(series, layers.Dense(num_classes, name="logits")(x))


def load():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 96).astype("int32")
    time = np.arange(32) * (1 + label[:, None]) / 4
    series = np.sin(time + rng.random((96, 1)))[..., None]
    return by_split({"series": series.astype("float32"), "label": label})
