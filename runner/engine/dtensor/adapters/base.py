"""The protocol between a DTensor engine and a kind of model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import LayerOutput


class Model(Protocol):
    """A tf_keras.Model, or a tf.Module with the same attributes.

    Attributes:
      losses: regularization, computed again at each call.
      submodules: its layers, and theirs.
      trainable_variables: the trained ones.
    """

    losses: Sequence[tf.Tensor]
    submodules: Sequence[tf.Module]
    trainable_variables: Sequence[tf.Variable]

    def __call__(self, inputs: Any, *, training: bool) -> Any:
        """Returns the outputs for a batch of `Task.inputs`."""
        ...


class ModelAdapter(Protocol):
    """Builds a config's model, on one device and on a mesh, and knows its variables.

    Attributes:
      lets_users_place: a user's builder gets layouts, and may compute on the mesh.
    """

    lets_users_place: bool

    def plain(self) -> Model:
        """Returns the model on one device, with initial weights from the seed."""
        ...

    def on_mesh(self, plain: Model, mesh: dtensor.Mesh, layouts: Mapping[str, dtensor.Layout]) -> Model:
        """Returns the model with every variable under its layout.

        May reuse the plain model.
        """
        ...

    def variables(self, model: Model) -> dict[str, tf.Variable]:
        """Returns canonical path -> variable, in the model's order."""
        ...

    def check(self, model: Model, config: RunConfig) -> None:
        """Raises ConfigError for a plain model that no mesh can train."""
        ...

    def batch_statistics(self, model: Model) -> int:
        """Returns the number of layers that compute statistics of the batch."""
        ...

    def whole(self, model: Model) -> set[str]:
        """Returns the paths of variables that operations need whole."""
        ...

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns every layer's output for a batch of this size."""
        ...

    def exported(self, values: Mapping[str, Array]) -> Model:
        """Returns a plain model of the framework's own layers with these weights."""
        ...
