"""What the networks of this package begin with: one image or vector, or several arrays joined to one vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runner.data.base import ArraySpec
from runner.model import ops

Inputs = Mapping[str, ArraySpec] | Sequence[int]  # by name, or the shape of the only one


def specs(inputs: Inputs) -> dict[str, ArraySpec]:
    """Returns the inputs by name; a shape alone is one of fractions."""
    return dict(inputs) if isinstance(inputs, Mapping) else {"inputs": ArraySpec(tuple(inputs), "float32")}


def is_plain(inputs: Inputs) -> bool:
    """Tells whether there is one input, of fractions."""
    return [spec.dtype for spec in specs(inputs).values()] == ["float32"]


def make(keras: Any, inputs: Inputs) -> Any:
    """Returns Keras's inputs: one tensor, or tensors by name."""
    found = specs(inputs)
    if len(found) == 1:
        only = next(iter(found.values()))
        return keras.Input(only.shape) if only.dtype == "float32" else keras.Input(only.shape, dtype=only.dtype)
    return {name: keras.Input(spec.shape, name=name, dtype=spec.dtype) for name, spec in found.items()}


def as_vector(keras: Any, inputs: Inputs) -> Any:
    """Returns a function of what `make` gives to one vector an example: all inputs, flattened and put end to end.

    Whole numbers that count named categories become one-hot, other ones fractions.
    """
    found = specs(inputs)
    if len(found) == 1:
        return _chained(_layers(keras, next(iter(found.values())), ""))
    each = {name: _chained(_layers(keras, spec, f"{name}.")) for name, spec in found.items()}
    join = keras.layers.Concatenate(name="joined")
    return lambda tensors: join([layer(tensors[name]) for name, layer in each.items()])


def with_image(keras: Any, inputs: Inputs) -> tuple[Any, Any, Any]:
    """Returns what a network of images begins with.

    Returns:
      Keras's inputs; the image among them; and a function that puts the other inputs, as one vector, behind a vector
      (batch, n) made of it, or gives that back where there are none.

    Raises:
      ValueError: several inputs, of which none or more than one is an image.
    """
    found = specs(inputs)
    taken = make(keras, inputs)
    if len(found) == 1:
        shape = next(iter(found.values())).shape
        if len(shape) != 3:
            raise ValueError(
                f"it takes an image, [height, width, channel]; {next(iter(found))} has shape {list(shape)}"
            )
        return taken, taken, lambda x: x
    images = [name for name, spec in found.items() if spec.is_image]
    if len(images) != 1:
        told = f"it takes one image among its inputs, and of {', '.join(found)} {len(images) or 'none'} are"
        raise ValueError(f"{told}; name others in task.inputs, or set model=mlp")
    others = {name: _chained(_layers(keras, spec, f"{name}.")) for name, spec in found.items() if name != images[0]}
    join = keras.layers.Concatenate(name="joined")
    return taken, taken[images[0]], lambda x: join([x, *(layer(taken[name]) for name, layer in others.items())])


def _layers(keras: Any, spec: ArraySpec, prefix: str) -> list[Any]:
    flatten = keras.layers.Flatten(name=f"{prefix}flatten")
    if spec.dtype == "float32":
        return [flatten]
    if spec.names and np.dtype(spec.dtype).kind in "iu":
        return [_one_hot(keras)(len(spec.names), name=f"{prefix}one_hot"), flatten]
    return [keras.layers.Rescaling(1.0, name=f"{prefix}fractions"), flatten]


def _chained(layers: Sequence[Any]) -> Any:
    def call(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return layers[0] if len(layers) == 1 else call


def _one_hot(keras: Any) -> Any:
    tensors = ops.of(keras)

    class OneHot(keras.layers.Layer):  # type: ignore[misc]
        """Whole numbers from 0 to `categories` - 1, (B, ...), to one-hot vectors (B, ..., categories)."""

        def __init__(self, categories: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.categories = categories

        def get_config(self) -> dict[str, Any]:
            """Returns the layer's arguments."""
            return {**super().get_config(), "categories": self.categories}

        def call(self, numbers: Any) -> Any:
            """Returns the vectors."""
            return tensors.one_hot(tensors.cast(numbers, "int32"), self.categories)

    return OneHot
