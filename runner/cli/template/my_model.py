"""The model: a Keras builder. It is called with `keras`, `inputs`, `outputs` and the keys of conf/model/mine.yaml."""

from __future__ import annotations

from typing import Any


def build(keras: Any, inputs: Any, outputs: Any, width: int, depth: int) -> Any:
    """Returns a model of dense layers.

    Args:
      keras: the Keras of the engine that is chosen; import no other one.
      inputs: array name -> its shape and dtype, one example's.
      outputs: what the task wants; `units` is the size of the last dim.
      width: units of a hidden layer.
      depth: hidden layers.
    """
    ((name, spec),) = inputs.items()
    given = keras.Input(spec.shape, name=name)
    x = given
    for number in range(1, depth + 1):
        x = keras.layers.Dense(width, activation="relu", name=f"d{number}")(x)
    return keras.Model(given, keras.layers.Dense(outputs.units, name="logits")(x))  # no activation: the loss has it
