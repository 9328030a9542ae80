"""What a DTensor engine asks of a kind of model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.engine.base import LayerOutput


class Model(Protocol):
    """A tf_keras.Model, or a tf.Module that looks like one.

    Attributes:
      losses: regularization, computed again at each call.
      submodules: its layers, and theirs.
      trainable_variables: what is trained.
    """

    losses: Sequence[tf.Tensor]
    submodules: Sequence[tf.Module]
    trainable_variables: Sequence[tf.Variable]

    def __call__(self, inputs: Any, *, training: bool) -> Any:
        """Returns the outputs for a batch of what `Task.inputs` gives."""
        ...


class ModelAdapter(Protocol):
    """Makes a config's model, on one device and on a mesh, and knows its variables.

    Attributes:
      lets_users_place: a user's builder is handed layouts, and may compute on the mesh.
    """

    lets_users_place: bool

    def plain(self) -> Model:
        """Returns the model on one device, its weights drawn from the seed."""
        ...

    def on_mesh(self, plain: Model, mesh: dtensor.Mesh, layouts: Mapping[str, dtensor.Layout]) -> Model:
        """Returns the model with every variable under its layout, made of what `plain` gave or again."""
        ...

    def variables(self, model: Model) -> dict[str, tf.Variable]:
        """Returns canonical path to variable, in the model's order."""
        ...

    def check(self, model: Model, config: RunConfig) -> None:
        """Raises ConfigError for a plain model that no mesh can train."""
        ...

    def batch_statistics(self, model: Model) -> int:
        """Returns how many layers compute statistics of the batch."""
        ...

    def whole(self, model: Model) -> set[str]:
        """Returns the paths of variables that operations need whole."""
        ...

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns what every layer gives for a batch."""
        ...

    def exported(self, values: Mapping[str, Array]) -> Model:
        """Returns a plain model of the framework's own layers with these weights."""
        ...
