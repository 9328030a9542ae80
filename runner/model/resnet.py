"""A small residual network for small images: He et al., Deep Residual Learning (2015), section 4.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.model.inputs import Inputs, with_image


def build(
    keras: Any,
    inputs: Inputs,
    num_classes: int,
    widths: Sequence[int] = (16, 32, 64),
    blocks: int = 1,
    activation: str = "relu",
) -> Any:
    """Builds stages of `blocks` residual blocks of two 3x3 convolutions; each stage but the first halves the image.

    Args:
      keras: the `tf_keras` or `keras` module.
      inputs: specs by name, or the shape (height, width, channel) of an image alone; other inputs than the one image
        go into the head.
      num_classes: units of the last layer.
      widths: channels of each stage; 3 stages of 3 blocks are the paper's ResNet-20.
      blocks: residual blocks a stage.
      activation: after each normalization.

    Returns:
      A model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).
    """
    layers = keras.layers

    def normalized(x: Any, width: int, kernel: int, stride: int, name: str, number: str) -> Any:
        x = layers.Conv2D(
            width,
            kernel,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            name=f"{name}conv{number}",
        )(x)
        return layers.BatchNormalization(name=f"{name}norm{number}")(x)

    taken, image, beside = with_image(keras, inputs)
    x = layers.Activation(activation, name="stem.activation")(normalized(image, widths[0], 3, 1, "stem.", ""))
    for stage, width in enumerate(widths):
        for block in range(blocks):
            name = f"stage_{stage}.block_{block}."
            stride = 2 if stage > 0 and block == 0 else 1
            y = normalized(x, width, 3, stride, name, "1")
            y = layers.Activation(activation, name=f"{name}activation1")(y)
            y = normalized(y, width, 3, 1, name, "2")
            if stride != 1 or x.shape[-1] != width:
                x = normalized(x, width, 1, stride, name, "_shortcut")
            x = layers.Activation(activation, name=f"{name}activation2")(layers.Add(name=f"{name}add")([x, y]))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(taken, layers.Dense(num_classes, name="head")(beside(x)), name="resnet")
