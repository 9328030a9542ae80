"""Teachers of the engine `jax`: frozen Keras 3 models from files, sharded as the layout says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding

from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.names import Names
from runner.engine.jax.precision import kind_of
from runner.engine.jax.shards import host_memory, placed_in_parts
from runner.engine.mappings import keys_by_id
from runner.errors import ConfigError, describe, in_one_line, invalid
from runner.model import keras_hub, preprocessing
from runner.task.base import BRIGHTEST, Task, named_outputs


def read_teachers(task: Task) -> dict[str, keras.Model]:
    """Returns the task's teachers, frozen, with their values in the host's memory.

    Raises:
      ConfigError: Keras can't load one of them.
    """
    models: dict[str, keras.Model] = {}
    for name, path in task.teachers.items():
        try:
            with host_memory(), private.tensorflow_unimported():
                model = _loaded(path, task)
        except Exception as error:  # A file may have anything in it.
            reason = in_one_line(f"{type(error).__name__}: {error}")
            raise ConfigError(
                f"task.teachers.{name}={path}: Keras can't load it ({reason}); write it again"
            ) from error
        model.trainable = False
        models[name] = model
    return models


def _loaded(path: Path, task: Task) -> keras.Model:
    """Returns the model of a file, or of the folder of a KerasHub preset, which gets the task's inputs by name."""
    if path.is_dir():
        return keras_hub.with_values(keras, task.input_specs(), str(path))
    return keras.saving.load_model(path, compile=False)


class Teachers:
    """Teachers of one trained model. Each gets the model's inputs, and a loss reads its outputs in the batch.

    Attributes:
      models: by name.
      variables: of all, by canonical path, which begins with the teacher's name.
    """

    def __init__(self, models: Mapping[str, keras.Model], task: Task) -> None:
        """Takes models of `read_teachers`, and the task that the trained model gets its inputs from."""
        self.models = dict(models)
        self._task = task
        self.variables: dict[str, keras.Variable] = {}
        for name, model in self.models.items():
            for path, variable in Names(model).variables.items():
                self.variables[f"{name}/{path}"] = variable
        self._paths = keys_by_id(self.variables)

    def check_names(self, paths: Collection[str], arrays: Collection[str]) -> None:
        """Rejects a teacher with the name of a part of the trained model, or of an array.

        Args:
          paths: of the trained model's variables.
          arrays: names of the dataset's.

        Raises:
          ConfigError: names the teacher.
        """
        parts = {path.partition("/")[0] for path in paths}
        for name in self.models:
            if name in parts or name in arrays:
                owner = "a layer of the model" if name in parts else "an array of the dataset"
                raise invalid(
                    f"task.teachers.{name}",
                    name,
                    problem=f"must have a name of its own, but {owner} is named {name}",
                    fix="rename the teacher",
                )

    def outputs(self, values: Mapping[str, Any], inputs: Any) -> dict[str, jax.Array]:
        """Returns the outputs of all teachers, in inference mode, without gradients.

        Args:
          values: of `variables`.
          inputs: of the trained model.

        Returns:
          float32 (B, ...) by the teacher's name, or of several outputs by `<teacher>_<output>`.

        Raises:
          ConfigError: a teacher does not take these inputs.
        """
        outputs: dict[str, jax.Array] = {}
        for name, model in self.models.items():
            own_inputs = self._inputs_of(model, inputs)
            trainable = [values[self._paths[id(variable)]] for variable in model.trainable_variables]
            non_trainable = []
            for variable in model.non_trainable_variables:
                # The states of random generators have no path; nothing is drawn from them in inference mode.
                path = self._paths.get(id(variable))
                non_trainable.append(variable.value if path is None else values[path])
            arguments = private.training_argument(model, training=False)
            try:
                taught, _ = model.stateless_call(trainable, non_trainable, own_inputs, **arguments)
            except Exception as error:  # A model of the user's may raise anything.
                raise ConfigError(
                    f"task.teachers.{name}: the model raised {describe(error)}; it must take the inputs of the "
                    "trained model"
                ) from error
            for output_name, output in named_outputs(taught).items():
                key = name if output is taught else f"{name}_{output_name}"
                outputs[key] = jax.lax.stop_gradient(jnp.asarray(output, jnp.float32))
        return outputs

    def _inputs_of(self, model: keras.Model, inputs: Any) -> Any:
        """Returns the trained model's inputs with the images on the scale of a teacher."""
        images = self._task.byte_images
        if not self._task.scales_by_model or not images:
            return inputs
        takes_bytes = preprocessing.takes_bytes(model, images)
        if takes_bytes == (self._task.scale_images is False):
            return inputs
        factor = BRIGHTEST if takes_bytes else 1.0 / BRIGHTEST
        if not isinstance(inputs, Mapping):
            return inputs * factor
        return {name: array * factor if name in images else array for name, array in inputs.items()}


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
