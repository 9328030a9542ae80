"""The multilayer perceptron of the Keras tutorial in three Keras styles, and with its layouts layer by layer.

Layers are named d1, d2, ... so that a variable's canonical path is `d1/kernel`, whatever the style.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.model.inputs import Inputs, as_vector, is_plain, make


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


def _stacked(keras: Any, inputs: Inputs, layers: Sequence[Any]) -> Any:
    """Returns the layers as a `Sequential`, which takes one tensor; of other inputs a functional model."""
    if is_plain(inputs):
        return keras.Sequential([make(keras, inputs), as_vector(keras, inputs), *layers], name="mlp")
    return _chained(keras, inputs, layers)


def _chained(keras: Any, inputs: Inputs, layers: Sequence[Any]) -> Any:
    taken = make(keras, inputs)
    x = as_vector(keras, inputs)(taken)
    for layer in layers:
        x = layer(x)
    return keras.Model(taken, x, name="mlp")


def sequential(
    keras: Any, inputs: Inputs, num_classes: int, hidden: Sequence[int] = (128,), activation: str = "relu"
) -> Any:
    """Builds the MLP as `keras.Sequential`.

    Args:
      keras: the `tf_keras` or `keras` module.
      inputs: specs by name, or the shape of the only one, as (height, width, channel); several are put end to end.
      num_classes: units of the last layer.
      hidden: units of each hidden layer.
      activation: of the hidden layers.

    Returns:
      A built model: images (batch, height, width, channel), vectors or arrays by name -> logits (batch, num_classes).
      Several inputs make it a functional model.
    """
    return _stacked(keras, inputs, _dense(keras, hidden, activation, num_classes))


def functional(
    keras: Any, inputs: Inputs, num_classes: int, hidden: Sequence[int] = (128,), activation: str = "relu"
) -> Any:
    """Builds the MLP in the functional style; arguments and result as `sequential`."""
    return _chained(keras, inputs, _dense(keras, hidden, activation, num_classes))


def subclassed(
    keras: Any, inputs: Inputs, num_classes: int, hidden: Sequence[int] = (128,), activation: str = "relu"
) -> Any:
    """Builds the MLP as a subclass of `keras.Model`; arguments as `sequential`.

    Returns:
      A model whose weights are made at its first call, as is usual in this style; the engine makes that call.
    """
    dense = _dense(keras, hidden, activation, num_classes)

    class Mlp(keras.Model):  # type: ignore[misc]
        """Dense layers as attributes d1, d2, ..."""

        def __init__(self) -> None:
            super().__init__(name="mlp")
            self.flatten = as_vector(keras, inputs)
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
    inputs: Inputs,
    num_classes: int,
    layouts: Mapping[str, Any],
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
) -> Any:
    """Builds the MLP with `kernel_layout` and `bias_layout` given to each layer, as the tutorial's first model.

    Args:
      keras: the `tf_keras` module; Keras 3 layers take no layouts.
      inputs: as `sequential`.
      num_classes: units of the last layer.
      layouts: `d1/kernel` and the like -> DTensor layout; an empty mapping builds a plain model.
      hidden: units of each hidden layer.
      activation: of the hidden layers.

    Returns:
      A model as `sequential`.
    """
    if not layouts:
        return sequential(keras, inputs, num_classes, hidden, activation)
    layers = _dense(
        keras,
        hidden,
        activation,
        num_classes,
        kernel_layout=lambda index: layouts[f"d{index + 1}/kernel"],
        bias_layout=lambda index: layouts[f"d{index + 1}/bias"],
    )
    return _stacked(keras, inputs, layers)
