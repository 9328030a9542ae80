"""The multilayer perceptron of the Keras tutorial in three Keras styles, and with its layouts layer by layer.

Layers are named d1, d2, ... so that a variable's canonical path is `d1/kernel`, whatever the style.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def _dense(keras: Any, hidden: Sequence[int], activation: str, num_classes: int, **extra: Any) -> list[Any]:
    """Returns the dense layers; the last has no activation, it gives logits."""
    units = [*hidden, num_classes]
    return [
        keras.layers.Dense(
            count,
            activation=activation if index < len(hidden) else None,
            name=f"d{index + 1}",
            **{key: give(index) for key, give in extra.items()},
        )
        for index, count in enumerate(units)
    ]


def sequential(
    keras: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
) -> Any:
    """Builds the MLP as `keras.Sequential`.

    Args:
      keras: the `tf_keras` or `keras` module.
      input_shape: (height, width, channel) of one example, without the batch dim.
      num_classes: units of the last layer.
      hidden: units of each hidden layer.
      activation: of the hidden layers.

    Returns:
      A built model: float32 images (batch, height, width, channel) -> logits (batch, num_classes).
    """
    layers = [keras.layers.Flatten(name="flatten"), *_dense(keras, hidden, activation, num_classes)]
    return keras.Sequential([keras.Input(input_shape), *layers], name="mlp")


def functional(
    keras: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
) -> Any:
    """Builds the MLP in the functional style; arguments and result as `sequential`."""
    inputs = keras.Input(input_shape)
    x = keras.layers.Flatten(name="flatten")(inputs)
    for layer in _dense(keras, hidden, activation, num_classes):
        x = layer(x)
    return keras.Model(inputs, x, name="mlp")


def subclassed(
    keras: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
) -> Any:
    """Builds the MLP as a subclass of `keras.Model`; arguments as `sequential`.

    Returns:
      A model whose weights are made at its first call, as is usual in this style; the engine makes that call.
    """
    del input_shape  # the first call tells the layers
    dense = _dense(keras, hidden, activation, num_classes)

    class Mlp(keras.Model):  # type: ignore[misc]
        """Dense layers as attributes d1, d2, ..."""

        def __init__(self) -> None:
            super().__init__(name="mlp")
            self.flatten = keras.layers.Flatten(name="flatten")
            for layer in dense:
                setattr(self, layer.name, layer)

        def call(self, inputs: Any, training: bool | None = None) -> Any:
            """Returns the logits; `training` changes nothing here."""
            del training
            x = self.flatten(inputs)
            for layer in dense:
                x = layer(x)
            return x

    return Mlp()


def explicit(
    keras: Any,
    input_shape: tuple[int, ...],
    num_classes: int,
    layouts: Mapping[str, Any],
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
) -> Any:
    """Builds the MLP with `kernel_layout` and `bias_layout` given to each layer, as the tutorial's first model.

    Args:
      keras: the `tf_keras` module; Keras 3 layers take no layouts.
      input_shape: (height, width, channel) of one example.
      num_classes: units of the last layer.
      layouts: `d1/kernel` and the like -> DTensor layout; an empty mapping builds a plain model.
      hidden: units of each hidden layer.
      activation: of the hidden layers.

    Returns:
      A built `Sequential` model.
    """
    if not layouts:
        return sequential(keras, input_shape, num_classes, hidden, activation)
    layers = _dense(
        keras,
        hidden,
        activation,
        num_classes,
        kernel_layout=lambda index: layouts[f"d{index + 1}/kernel"],
        bias_layout=lambda index: layouts[f"d{index + 1}/bias"],
    )
    flatten = keras.layers.Flatten(name="flatten")
    return keras.Sequential([keras.Input(input_shape), flatten, *layers], name="mlp")
