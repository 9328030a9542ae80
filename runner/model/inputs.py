# ruff: noqa: D102 - a layer's class documents its call
"""First layers of the networks of this package: one image, one vector, or several arrays joined to one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from runner.data.base import ArraySpec
from runner.model.portable import PortableLayer, Tensor, bind

# Specs by name, or the shape of the only input.
Inputs = Mapping[str, ArraySpec] | Sequence[int]


class OneHot(PortableLayer):
    """Maps integers (B, ...), from 0, to one-hot vectors (B, ..., categories)."""

    def __init__(self, categories: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.categories = categories

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "categories": self.categories}

    def call(self, numbers: Tensor) -> Tensor:
        return self.ops.one_hot(self.ops.cast(numbers, "int32"), self.categories)


def specs(inputs: Inputs) -> dict[str, ArraySpec]:
    """Returns the specs by name; an input that is only a shape is float32."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {"inputs": ArraySpec(tuple(inputs), "float32")}


def is_single_float(inputs: Inputs) -> bool:
    """Returns whether there is one input, of float32."""
    return [spec.dtype for spec in specs(inputs).values()] == ["float32"]


def make(keras: Any, inputs: Inputs) -> Any:
    """Returns the Keras inputs: one tensor, or tensors by name if there are several."""
    by_name = specs(inputs)
    if len(by_name) == 1:
        (spec,) = by_name.values()
        return keras.Input(spec.shape, dtype=spec.dtype)
    tensors = {}
    for name, spec in by_name.items():
        tensors[name] = keras.Input(spec.shape, name=name, dtype=spec.dtype)
    return tensors


def as_vector(keras: Any, inputs: Inputs) -> Any:
    """Returns a function of the result of `make` to one vector per example.

    It flattens and concatenates all inputs.

    Integers that encode named categories become one-hot vectors, other integers floats.
    """
    by_name = specs(inputs)
    if len(by_name) == 1:
        (spec,) = by_name.values()
        return _vector_layer(keras, spec, "")
    parts = _vector_layers(keras, by_name)
    join = keras.layers.Concatenate(name="joined")
    return lambda tensors: join([part(tensors[name]) for name, part in parts.items()])


def with_image(keras: Any, inputs: Inputs) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    """Returns the inputs of an image network; a ValueError unless exactly one of them is an image."""
    by_name = specs(inputs)
    tensors = make(keras, inputs)
    if len(by_name) == 1:
        ((name, spec),) = by_name.items()
        if len(spec.shape) != 3:
            raise ValueError(f"it takes an image, [height, width, channel]; {name} has shape {list(spec.shape)}")
        return tensors, tensors, lambda x: x
    images = [name for name, spec in by_name.items() if spec.is_image]
    if len(images) != 1:
        raise ValueError(
            f"it needs exactly one image among its inputs, but {len(images) or 'none'} of {', '.join(by_name)} are "
            "images; choose other inputs with task.inputs, or set model=mlp"
        )
    del by_name[images[0]]
    parts = _vector_layers(keras, by_name)
    join = keras.layers.Concatenate(name="joined")

    def with_other_inputs(x: Tensor) -> Tensor:
        vectors = [part(tensors[name]) for name, part in parts.items()]
        return join([x, *vectors])

    return tensors, tensors[images[0]], with_other_inputs


def _vector_layers(keras: Any, by_name: Mapping[str, ArraySpec]) -> dict[str, Any]:
    layers = {}
    for name, spec in by_name.items():
        layers[name] = _vector_layer(keras, spec, f"{name}.")
    return layers


def _vector_layer(keras: Any, spec: ArraySpec, prefix: str) -> Any:
    """Returns a layer from one input to a float vector per example, or a function that calls two.

    A single layer is returned itself: a `Sequential` model needs layers.
    """
    flatten = keras.layers.Flatten(name=f"{prefix}flatten")
    if spec.dtype == "float32":
        return flatten
    if spec.names and np.dtype(spec.dtype).kind in "iu":
        to_float = bind(OneHot, keras)(len(spec.names), name=f"{prefix}one_hot")
    else:
        # A Rescaling by 1 is Keras's cast to float.
        to_float = keras.layers.Rescaling(1.0, name=f"{prefix}fractions")
    return lambda x: flatten(to_float(x))
