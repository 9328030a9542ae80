"""Images by MLPs over patches and over channels."""

from tests.keras_examples.spec import Spec
from tests.keras_examples.vision.mnist_convnet import load

__all__ = ["SPEC", "load", "make_model"]

SPEC = Spec(
    title="Image classification with modern MLP models",
    overrides=["optimizer=adamw", "optimizer.weight_decay=1e-4", "task.classes=4"],
    lost=["callbacks: early stopping, learning rate reduced on a plateau", "augmentation by layers"],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Conv2D(16, 4, strides=4, name="patches")(image)
    x = layers.Reshape((16, 16))(x)
    for block in range(2):
        over_patches = layers.Permute((2, 1))(layers.LayerNormalization(name=f"patch_norm{block}")(x))
        over_patches = layers.Dense(32, activation="gelu", name=f"patch_up{block}")(over_patches)
        over_patches = layers.Dense(16, name=f"patch_down{block}")(over_patches)
        x = layers.Permute((2, 1))(over_patches) + x
        over_channels = layers.LayerNormalization(name=f"channel_norm{block}")(x)
        over_channels = layers.Dense(32, activation="gelu", name=f"channel_up{block}")(over_channels)
        x = layers.Dense(16, name=f"channel_down{block}")(over_channels) + x
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(image, layers.Dense(num_classes, name="logits")(x))
