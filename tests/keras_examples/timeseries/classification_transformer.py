"""Series of one sensor by blocks of attention."""

from tests.keras_examples.spec import Spec
from tests.keras_examples.timeseries.classification_from_scratch import load

__all__ = ["SPEC", "load", "make_model"]

SPEC = Spec(
    title="Timeseries classification with a transformer model",
    overrides=["optimizer=adam", "optimizer.learning_rate=1e-4", "task.classes=2"],
    lost=["callbacks: early stopping"],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    series = keras.Input(input_shape)
    x = series
    for block in range(2):
        attended = layers.MultiHeadAttention(2, 8, name=f"attention{block}")(x, x)
        x = layers.LayerNormalization(name=f"norm{block}")(layers.Dropout(0.1)(attended)) + x
        inner = layers.Conv1D(4, 1, activation="relu", name=f"widen{block}")(x)
        inner = layers.Conv1D(input_shape[-1], 1, name=f"narrow{block}")(layers.Dropout(0.1)(inner))
        x = layers.LayerNormalization(name=f"inner_norm{block}")(inner) + x
    x = layers.GlobalAveragePooling1D(data_format="channels_first")(x)
    x = layers.Dropout(0.4)(layers.Dense(16, activation="relu", name="hidden")(x))
    return keras.Model(series, layers.Dense(num_classes, name="logits")(x))
