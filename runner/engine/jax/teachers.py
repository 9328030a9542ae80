"""Teachers of the engine `jax`: frozen Keras 3 models from files, sharded as the layout says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding

from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.precision import kind_of
from runner.engine.jax.shards import host_memory, placed_in_parts
from runner.errors import ConfigError, in_one_line
from runner.task.base import Task


def read_teachers(task: Task) -> dict[str, keras.Model]:
    """Returns the task's teachers, frozen, with their values in the host's memory.

    Raises:
      ConfigError: Keras can't load one of them.
    """
    models: dict[str, keras.Model] = {}
    for name, path in task.teachers.items():
        try:
            with host_memory(), private.tensorflow_unimported():
                model = keras.saving.load_model(path, compile=False)
        except Exception as error:  # A file may have anything in it.
            reason = in_one_line(f"{type(error).__name__}: {error}")
            raise ConfigError(
                f"task.teachers.{name}={path}: Keras can't load it ({reason}); export the run again"
            ) from error
        model.trainable = False
        models[name] = model
    return models


def placed(
    variables: Mapping[str, keras.Variable], shardings: Mapping[str, NamedSharding], *, planning: bool
) -> dict[str, Any]:
    """Puts the values of variables on the devices and releases those of the host.

    Args:
      variables: by canonical path.
      shardings: by canonical path.
      planning: return shapes in place of arrays.
    """
    arrays: dict[str, Any] = {}
    for path, variable in variables.items():
        kind = kind_of(variable)
        like = jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=shardings[path])
        if planning:
            arrays[path] = like
            continue
        values = np.asarray(variable.value)

        def read(index: tuple[slice, ...], values: Array = values) -> Array:
            return values[index]

        arrays[path] = placed_in_parts(read, like)
    return arrays
