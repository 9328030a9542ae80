"""The multilayer perceptron of the Keras tutorial in three Keras styles, and with explicit layouts per layer.

Layers are named d1, d2, ... so that a variable's canonical path is `d1/kernel` in every style.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.model.inputs import Inputs, as_vector, is_single_float, make
from runner.model.portable import Tensor

# Keyword of a layer -> its value for the layer of an index.
LayerOptions = Mapping[str, Callable[[int], Any]]


def sequential(
    keras: Any, inputs: Inputs, num_classes: int, hidden: Sequence[int] = (128,), activation: str = "relu"
) -> Any:
    """Builds the MLP as `keras.Sequential`: images, vectors or arrays by name -> logits (batch, num_classes).

    Several inputs make it a functional model.
    """
    return _stacked(keras, inputs, _dense_layers(keras, hidden, activation, num_classes))


def functional(
    keras: Any, inputs: Inputs, num_classes: int, hidden: Sequence[int] = (128,), activation: str = "relu"
) -> Any:
    """Builds the MLP in the functional style; arguments and result as `sequential`."""
    return _chained(keras, inputs, _dense_layers(keras, hidden, activation, num_classes))


def subclassed(
    keras: Any, inputs: Inputs, num_classes: int, hidden: Sequence[int] = (128,), activation: str = "relu"
) -> Any:
    """Builds the MLP as a subclass of `keras.Model`; arguments as `sequential`."""
    dense_layers = _dense_layers(keras, hidden, activation, num_classes)

    class Mlp(keras.Model):  # type: ignore[misc]
        """Dense layers as attributes d1, d2, ..."""

        def __init__(self) -> None:
            super().__init__(name="mlp")
            self.flatten = as_vector(keras, inputs)
            for layer in dense_layers:
                setattr(self, layer.name, layer)

        def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
            """Returns the logits; `training` changes nothing here."""
            del training
            x = self.flatten(inputs)
            for layer in dense_layers:
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
    """Builds the first model of the tutorial: `kernel_layout` and `bias_layout` of each layer."""
    if not layouts:
        return sequential(keras, inputs, num_classes, hidden, activation)
    options: LayerOptions = {
        "kernel_layout": lambda index: layouts[f"d{index + 1}/kernel"],
        "bias_layout": lambda index: layouts[f"d{index + 1}/bias"],
    }
    return _stacked(keras, inputs, _dense_layers(keras, hidden, activation, num_classes, options))


def _dense_layers(
    keras: Any, hidden: Sequence[int], activation: str, num_classes: int, options: LayerOptions | None = None
) -> list[Any]:
    layers = []
    # The last layer computes logits, so it has no activation.
    activations = [*[activation] * len(hidden), None]
    for index, units in enumerate([*hidden, num_classes]):
        layer_options = {name: value(index) for name, value in (options or {}).items()}
        layer = keras.layers.Dense(units, activation=activations[index], name=f"d{index + 1}", **layer_options)
        layers.append(layer)
    return layers


def _stacked(keras: Any, inputs: Inputs, layers: Sequence[Any]) -> Any:
    """Returns a `Sequential` for one input of float32, which nothing has to convert, else a functional model."""
    if is_single_float(inputs):
        return keras.Sequential([make(keras, inputs), as_vector(keras, inputs), *layers], name="mlp")
    return _chained(keras, inputs, layers)


def _chained(keras: Any, inputs: Inputs, layers: Sequence[Any]) -> Any:
    taken = make(keras, inputs)
    x = as_vector(keras, inputs)(taken)
    for layer in layers:
        x = layer(x)
    return keras.Model(taken, x, name="mlp")
