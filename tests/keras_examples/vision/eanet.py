"""Images by attention to two small memories instead of to the other patches."""

from tests.keras_examples.layers import positions
from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Image classification with EANet (External Attention Transformer)",
    trains="AdamW; cross-entropy with label smoothing; accuracy, top-5",
    data="images(classes=6)",
    overrides=[
        "optimizer=adamw",
        "optimizer.weight_decay=1e-4",
        "task.label_smoothing=0.1",
        "task.classes=6",
        "task.metrics=[{TopKCategoricalAccuracy:{k:5}}]",
    ],
    simplified=[
        "no normalization and augmentation by layers",
        "patches by a strided convolution",
        "one head of external attention, normalized once and without dropout",
        "one dropout of two per MLP",
    ],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = positions(keras)(layers.Reshape((16, 16))(layers.Conv2D(16, 4, strides=4)(image)))
    for _ in range(2):
        start = x
        x = layers.LayerNormalization(epsilon=1e-5)(x)
        near = layers.Softmax(axis=1)(layers.Dense(8)(layers.Dense(32)(x)))
        x = layers.Dropout(0.2)(layers.Dense(16)(layers.Dense(32)(near)))
        x = previous = layers.Add()([x, start])
        x = layers.Dense(32, activation="gelu")(layers.LayerNormalization(epsilon=1e-5)(x))
        x = layers.Add()([layers.Dropout(0.2)(layers.Dense(16)(x)), previous])
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(image, layers.Dense(num_classes)(x))
