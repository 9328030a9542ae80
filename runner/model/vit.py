# ruff: noqa: D102 - a layer's class documents its call
"""A small vision transformer: Dosovitskiy et al., An Image is Worth 16x16 Words (2020), with mean pooling.

Kernels of attention keep their heads as a dim of their own, (dim, heads, head_width), so that a rule can shard them
over a mesh axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from runner.model.inputs import Inputs, with_image
from runner.model.portable import PortableLayer, Tensor, bind

# Epsilon of the paper's layer normalization; Keras's default is 1e-3.
_EPSILON = 1e-6


class Patches(PortableLayer):
    """Cuts images (B, H, W, C) into tokens (B, H/p * W/p, p * p * C), row by row."""

    def __init__(self, patch: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch = patch

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "patch": self.patch}

    def call(self, images: Tensor) -> Tensor:
        p = self.patch
        _, height, width, channels = images.shape
        rows = height // p
        columns = width // p
        x = self.ops.reshape(images, (-1, rows, p, columns, p, channels))
        x = self.ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return self.ops.reshape(x, (-1, rows * columns, p * p * channels))


class Position(PortableLayer):
    """Adds a learned vector to each token."""

    def build(self, input_shape: Any) -> None:
        """Creates the embedding (tokens, dim)."""
        # The standard deviation of the paper's released code, which takes it from BERT.
        normal = self.keras.initializers.RandomNormal(stddev=0.02)
        self.embedding = self.add_weight(shape=tuple(input_shape[1:]), initializer=normal, name="embedding")
        super().build(input_shape)

    def call(self, tokens: Tensor) -> Tensor:
        return tokens + self.embedding


class Mix(PortableLayer):
    """Attention of each head (batch, tokens, heads, head_width): softmax(q k^T / sqrt(head_width)) v."""

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        q, k, v = inputs
        scores = self.ops.einsum("bqhk,bshk->bhqs", q * (1.0 / math.sqrt(q.shape[-1])), k)
        return self.ops.einsum("bhqs,bshk->bqhk", self.ops.softmax(scores), v)


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

    Returns:
      A model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).

    Raises:
      ValueError: a patch that does not divide the image, or heads that don't divide `dim`.
    """
    taken, image, with_other_inputs = with_image(keras, inputs)
    height, width = image.shape[1:3]
    if height % patch or width % patch:
        raise ValueError(f"model.patch={patch} must divide the image's height and width, {height} and {width}")
    if dim % heads:
        raise ValueError(f"model.heads={heads} must divide model.dim={dim}")
    layers = keras.layers
    x = bind(Patches, keras)(patch, name="cut")(image)
    x = layers.Dense(dim, name="patches")(x)
    x = bind(Position, keras)(name="position")(x)
    for index in range(depth):
        name = f"block_{index}."
        y = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}norm1")(x)
        y = _attention(keras, y, dim, heads, f"{name}attention.")
        y = layers.Dropout(dropout, name=f"{name}dropout1")(y)
        x = layers.Add(name=f"{name}add1")([x, y])
        y = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}norm2")(x)
        y = layers.Dense(mlp, activation="gelu", name=f"{name}mlp.up")(y)
        y = layers.Dense(dim, name=f"{name}mlp.down")(y)
        y = layers.Dropout(dropout, name=f"{name}dropout2")(y)
        x = layers.Add(name=f"{name}add2")([x, y])
    x = layers.LayerNormalization(epsilon=_EPSILON, name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    logits = layers.Dense(num_classes, name="head")(with_other_inputs(x))
    return keras.Model(taken, logits, name="vit")


def _attention(keras: Any, x_btd: Tensor, dim: int, heads: int, name: str) -> Tensor:
    layers = keras.layers

    def to_heads(part: str) -> Tensor:
        projection = layers.EinsumDense(
            "btd,dhk->bthk", output_shape=(None, heads, dim // heads), bias_axes="hk", name=f"{name}{part}"
        )
        return projection(x_btd)

    parts = [to_heads("query"), to_heads("key"), to_heads("value")]
    mixed = bind(Mix, keras)(name=f"{name}mix")(parts)
    output = layers.EinsumDense("bthk,hkd->btd", output_shape=(None, dim), bias_axes="d", name=f"{name}output")
    return output(mixed)
