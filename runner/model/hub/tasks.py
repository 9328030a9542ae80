"""KerasHub's task models, such as `CausalLM`, that a user's builder returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.schema import ModelConfig
from runner.data.base import ArraySpec
from runner.errors import ConfigError
from runner.model import contract
from runner.model.hub import inputs as hub_inputs

# What all of them override: `fit` and `evaluate` preprocess the data first, and do nothing else of their own.
_OF_PIPELINE = ("fit", "evaluate")


def is_plain(model: Any) -> bool:
    """Returns whether a model is one of KerasHub's own tasks that Keras's step trains."""
    is_task = any(base.__name__ == "Task" and base.__module__.startswith("keras_hub.") for base in type(model).__mro__)
    is_own = type(model).__module__.startswith("keras_hub.")
    return is_task and is_own and not contract.overridden(model, of_keras(model), without=_OF_PIPELINE)


def of_keras(model: Any) -> type:
    """Returns Keras's `Model`, of which a task is a subclass."""
    return next(base for base in type(model).__mro__ if base.__name__ == "Model")


def as_model(keras: Any, task: Any, config: ModelConfig, specs: Mapping[str, ArraySpec]) -> Any:
    """Returns a task's network as a functional model of the run's arrays.

    It is not compiled, as KerasHub compiles its tasks by default: a run has its own loss and optimizer.

    Raises:
      ConfigError: the task has a preprocessor.
    """
    name = type(task).__name__
    if task.preprocessor is not None:
        raise ConfigError(
            f"model._target_={config.target}: {name} has a preprocessor, which Keras's fit applies and a run does "
            "not; set its argument preprocessor=None, and prepare the arrays in the dataset"
        )
    model_inputs, task_inputs = hub_inputs.connected(keras, name, task.input, specs)
    network = keras.Model(task.input, task.output, name=task.name)
    return keras.Model(model_inputs, network(task_inputs), name="keras_hub")
