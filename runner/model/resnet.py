"""A small residual network for small images: He et al., Deep Residual Learning (2015), section 4.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.model.inputs import Inputs, with_image
from runner.model.portable import Tensor


def build(
    keras: Any,
    inputs: Inputs,
    num_classes: int,
    widths: Sequence[int] = (16, 32, 64),
    blocks: int = 1,
    activation: str = "relu",
) -> Any:
    """Builds stages of `blocks` residual blocks of two 3x3 convolutions.

    Each stage but the first halves the image.

    Returns:
      A model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).
    """
    layers = keras.layers

    def convolution(x: Tensor, width: int, kernel: int, stride: int, name: str, number: str) -> Tensor:
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

    def residual_block(x: Tensor, width: int, stride: int, name: str) -> Tensor:
        y = convolution(x, width, 3, stride, name, "1")
        y = layers.Activation(activation, name=f"{name}activation1")(y)
        y = convolution(y, width, 3, 1, name, "2")
        # The paper's option B: a projection only where the shape changes.
        if stride != 1 or x.shape[-1] != width:
            x = convolution(x, width, 1, stride, name, "_shortcut")
        x = layers.Add(name=f"{name}add")([x, y])
        return layers.Activation(activation, name=f"{name}activation2")(x)

    taken, image, with_other_inputs = with_image(keras, inputs)
    x = convolution(image, widths[0], 3, 1, "stem.", "")
    x = layers.Activation(activation, name="stem.activation")(x)
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 1
            if stage > 0 and block == 0:
                # The first block of each stage but the first halves the image.
                stride = 2
            x = residual_block(x, width, stride, f"stage_{stage}.block_{block}.")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    logits = layers.Dense(num_classes, name="head")(with_other_inputs(x))
    return keras.Model(taken, logits, name="resnet")
