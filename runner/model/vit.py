"""A small vision transformer: Dosovitskiy et al., An Image is Worth 16x16 Words (2020), with mean pooling.

Heads have a dim of their own in the kernels, (dim, heads, head_dim), so that a rule can split them over a mesh axis.
"""

from __future__ import annotations

import math
from typing import Any

from runner.model import ops, scope
from runner.model.inputs import Inputs, with_image


def build(
    keras: Any,
    inputs: Inputs,
    num_classes: int,
    patch: int = 7,
    dim: int = 64,
    depth: int = 2,
    heads: int = 4,
    mlp: int = 128,
    dropout: float = 0.0,
) -> Any:
    """Builds a pre-norm transformer over image patches.

    Args:
      keras: the `tf_keras` or `keras` module.
      inputs: specs by name, or the shape (height, width, channel) of an image alone; other inputs than the one image
        go into the head.
      num_classes: units of the last layer.
      patch: height and width of a patch; must divide the image's.
      dim: width of a token.
      depth: transformer blocks.
      heads: attention heads; must divide `dim`.
      mlp: hidden units of each block's MLP.
      dropout: share of each block's two outputs set to zero while training.

    Returns:
      A model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).

    Raises:
      ValueError: a patch that does not divide the image, or heads that don't divide `dim`.
    """
    taken, image, beside = with_image(keras, inputs)
    height, width = image.shape[1:3]
    if height % patch or width % patch:
        raise ValueError(f"model.patch={patch} must divide the image's height and width, {height} and {width}")
    if dim % heads:
        raise ValueError(f"model.heads={heads} must divide model.dim={dim}")
    layers, (patches, position, mix) = keras.layers, _layers(keras)
    x = patches(patch, name="cut")(image)
    x = layers.Dense(dim, name="patches")(x)
    x = position(name="position")(x)
    for index in range(depth):
        name = f"block_{index}."
        y = layers.LayerNormalization(epsilon=1e-6, name=f"{name}norm1")(x)
        y = _attention(layers, mix, y, dim, heads, f"{name}attention.")
        x = layers.Add(name=f"{name}add1")([x, layers.Dropout(dropout, name=f"{name}dropout1")(y)])
        y = layers.LayerNormalization(epsilon=1e-6, name=f"{name}norm2")(x)
        y = layers.Dense(mlp, activation="gelu", name=f"{name}mlp.up")(y)
        y = layers.Dense(dim, name=f"{name}mlp.down")(y)
        x = layers.Add(name=f"{name}add2")([x, layers.Dropout(dropout, name=f"{name}dropout2")(y)])
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(taken, layers.Dense(num_classes, name="head")(beside(x)), name="vit")


def _attention(layers: Any, mix: Any, x_btd: Any, dim: int, heads: int, name: str) -> Any:
    """Multi-head self-attention: projections to heads, mixing of the tokens, projection back."""
    queries, keys, values = (
        layers.EinsumDense(
            "btd,dhk->bthk", output_shape=(None, heads, dim // heads), bias_axes="hk", name=f"{name}{part}"
        )(x_btd)
        for part in ("query", "key", "value")
    )
    mixed = mix(name=f"{name}mix")([queries, keys, values])
    return layers.EinsumDense("bthk,hkd->btd", output_shape=(None, dim), bias_axes="d", name=f"{name}output")(mixed)


def _layers(keras: Any) -> tuple[Any, Any, Any]:
    """Returns the three layers that Keras has not, as classes of the Keras given."""
    tensors = ops.of(keras)

    class Patches(keras.layers.Layer):  # type: ignore[misc]
        """Images (B, H, W, C) to tokens (B, H/p * W/p, p * p * C), row by row."""

        def __init__(self, patch: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.patch = patch

        def get_config(self) -> dict[str, Any]:
            """Returns the layer's arguments."""
            return {**super().get_config(), "patch": self.patch}

        def call(self, images: Any) -> Any:
            """Returns the tokens; split like the images' height where whole rows of patches can be."""
            p = self.patch
            _, height, width, channels = images.shape
            rows = height // p
            columns = width // p
            if scope.splits_space():  # whole rows of patches stay together
                batch, height_axis, _, _ = scope.image_spec((0, rows, 1, 0))
                images = scope.lay(images, [batch, height_axis, None, None], scope.image_spec(images.shape))
            x = tensors.reshape(images, (-1, rows, p, columns, p, channels))
            x = tensors.transpose(x, (0, 1, 3, 2, 4, 5))
            return tensors.reshape(x, (-1, rows * columns, p * p * channels))

    class Position(keras.layers.Layer):  # type: ignore[misc]
        """Adds a learned vector to each token."""

        def build(self, input_shape: Any) -> None:
            """Makes the (tokens, dim) embedding."""
            normal = keras.initializers.RandomNormal(stddev=0.02)
            self.embedding = self.add_weight(shape=tuple(input_shape[1:]), initializer=normal, name="embedding")
            super().build(input_shape)

        def call(self, tokens: Any) -> Any:
            """Returns the tokens with their positions added."""
            return tokens + self.embedding

    class Mix(keras.layers.Layer):  # type: ignore[misc]
        """softmax(q k^T / sqrt(head_dim)) v, head by head; all (batch, tokens, heads, head_dim)."""

        def call(self, inputs: Any) -> Any:
            """Returns the mixed values."""
            q, k, v = inputs
            if scope.splits_space():  # a token attends to all, so each device needs every key and value
                k, v = (scope.lay(each, [scope.batch_axis(), None, scope.MATCH, None]) for each in (k, v))
            scores = tensors.einsum("bqhk,bshk->bhqs", q * (1.0 / math.sqrt(q.shape[-1])), k)
            return tensors.einsum("bhqs,bshk->bqhk", tensors.softmax(scores), v)

    return Patches, Position, Mix
