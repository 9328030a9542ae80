"""Images by MLPs over patches and over channels."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Image classification with modern MLP models",
    trains="AdamW; cross-entropy; accuracy, top-5; rate reduced on a plateau, early stopping",
    data="images(classes=6)",
    overrides=[
        "optimizer=adamw",
        "optimizer.learning_rate=0.005",
        "optimizer.weight_decay=1e-4",
        "optimizer.schedule.plateau.metric=eval/loss",
        "optimizer.schedule.plateau.patience=5",
        "optimizer.schedule.plateau.factor=0.5",
        "trainer.early_stopping.metric=eval/loss",
        "trainer.early_stopping.patience=10",
        "task.classes=6",
        "task.metrics=[{TopKCategoricalAccuracy:{k:5}}]",
    ],
    simplified=[
        "the MLP-mixer of three models",
        "no normalization, resizing and augmentation by layers",
        "patches by a strided convolution",
        "blocks without dropout, with a norm for each of their two MLPs",
    ],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Conv2D(16, 4, strides=4)(image)
    x = layers.Reshape((16, 16))(x)
    for _ in range(2):
        over_patches = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        over_patches = layers.Dense(16)(layers.Dense(32, activation="gelu")(over_patches))
        x = layers.Permute((2, 1))(over_patches) + x
        over_channels = layers.LayerNormalization()(x)
        x = layers.Dense(16)(layers.Dense(32, activation="gelu")(over_channels)) + x
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(image, layers.Dense(num_classes)(x))
