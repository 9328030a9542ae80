"""A run's model on one device, without a mesh: the weights that a checkpoint holds in parts, whole again."""

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
    from runner.engine.jax import adapter as jax
else:  # each imports its engine's library
    dtensor = late("runner.engine.dtensor.adapters")
    jax = late("runner.engine.jax.adapter")


@dataclass(frozen=True)
class PlainModel:
    """A model on one device.

    Attributes:
      model: called with what `Task.inputs` gives and `training`: a tf_keras model, a tf.Module or a Keras 3 model.
      keras: the same network as a Keras model, for a file of Keras's own; None where there is none.
      package: `tf_keras` or `keras`, what `keras` is made of.
      why: in words, why `keras` is None.
    """

    model: Any
    keras: Any
    package: str
    why: str = ""


class WeightsInUse(Mapping[str, Array]):
    """What evaluations compute with: the averages of the weights where the run keeps them, else the weights.

    Each array is read when it is asked for, so that a large model's are not there together.
    """

    def __init__(self, state: Mapping[str, Array]) -> None:
        """Takes what an engine's `state` or a checkpoint holds."""
        paths = set(state)
        self._state = state
        self._paths = {
            path: ema_path(path) if ema_path(path) in paths else path for path in state if is_variable(path)
        }

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
      data: what the model takes and must give.
      values: canonical path to whole array, for every variable of the model; others are left alone.

    Raises:
      ConfigError: the builder fails.
    """
    make = {"jax": _jax, "core_dtensor": _core}.get(config.engine.name, _keras)
    return make(config, data, values)


def _keras(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    model = dtensor.make_adapter(config, data).exported(values)
    return PlainModel(model, model, "tf_keras")


def _core(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    adapter = dtensor.make_adapter(config, data)
    module = adapter.plain()
    for path, variable in adapter.variables(module).items():
        variable.assign(values[path])
    try:
        return PlainModel(module, adapter.exported(values), "tf_keras")
    except (ConfigError, AttributeError, KeyError):  # a user's own builder, which knows no Keras
        return PlainModel(module, None, "tf_keras", "its builder makes no Keras model")


def _jax(config: RunConfig, data: DataSpec, values: Mapping[str, Array]) -> PlainModel:
    model = jax.Keras3Factory(config.model, data, config.trainer.seed, config.engine.precision).assigned(values)
    return PlainModel(model, model, "keras")
