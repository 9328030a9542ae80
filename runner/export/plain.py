"""A run's model on one device, without a mesh, with whole arrays in place of the checkpoint's shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.config.schema import RunConfig
from runner.data.base import Array
from runner.errors import ConfigError
from runner.host.late import late
from runner.optim.paths import ema_path, is_variable
from runner.task.base import DataSpec

if TYPE_CHECKING:
    from runner.engine.dtensor import adapters as dtensor
    from runner.engine.dtensor.adapters import ModelAdapter
    from runner.engine.jax import adapter as jax
else:
    # Each imports its engine's library, and only one of them may be installed.
    dtensor = late("runner.engine.dtensor.adapters")
    jax = late("runner.engine.jax.adapter")


@dataclass(frozen=True)
class PlainModel:
    """A model on one device.

    Attributes:
      model: called with the task's inputs and `training`: a tf_keras model, a tf.Module or a Keras 3 model.
      keras: the same network as a Keras model, for a Keras file; None if there is none.
      package: `tf_keras` or `keras`, the library of `keras`.
      why: why `keras` is None, in words.
    """

    model: Any
    keras: Any
    package: str
    why: str = ""


class WeightsInUse(Mapping[str, Array]):
    """The weights that evaluations use: their exponential moving averages if the run keeps them, else the weights.

    Each array is read when it is asked for, so that those of a large model are never in memory together.
    """

    def __init__(self, state: Mapping[str, Array]) -> None:
        """Takes an engine's `state` or a checkpoint."""
        self._state = state
        # Path of a variable -> path of the array that is used.
        self._paths: dict[str, str] = {}
        paths = set(state)
        for path in state:
            if is_variable(path):
                average = ema_path(path)
                self._paths[path] = average if average in paths else path

    def __getitem__(self, path: str) -> Array:
        """Returns a variable's whole array."""
        return self._state[self._paths[path]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def make_plain(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    """Builds the config's model on one device, of its framework's own layers.

    Args:
      config: checked; the engine's libraries are imported.
      data: the inputs of the model and the outputs that it must have.
      values: canonical path -> whole array, for every variable of the model; others are ignored.

    Raises:
      ConfigError: the builder fails.
    """
    if config.engine.name == "jax":
        factory = jax.Keras3Factory(config.model, data, config.trainer.seed, config.engine.precision)
        model = factory.assigned(values)
        return PlainModel(model, model, "keras")
    adapter = dtensor.make_adapter(config, data)
    if config.engine.name == "core_dtensor":
        return _core(adapter, values)
    model = adapter.exported(values)
    return PlainModel(model, model, "tf_keras")


def _core(adapter: ModelAdapter, values: Mapping[str, Array]) -> PlainModel:
    """Returns a model of TensorFlow's modules, and the Keras model of the same network if its builder makes one."""
    module = adapter.plain()
    for path, variable in adapter.variables(module).items():
        variable.assign(values[path])
    try:
        return PlainModel(module, adapter.exported(values), "tf_keras")
    except (ConfigError, AttributeError, KeyError):
        # A user's own builder may not know Keras.
        return PlainModel(module, None, "tf_keras", "its builder makes no Keras model")
