"""Calls of model builders, and checks of their models that all engines share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runner.config.import_path import parameters, raised
from runner.config.schema import ModelConfig
from runner.errors import ConfigError, shown
from runner.layout.paths import RESERVED
from runner.task.base import DataSpec

# Keras's dtype policy of each `engine.precision`. Variables are float32 with both.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def data_arguments(builder: Callable[..., Any], config: ModelConfig, data: DataSpec) -> dict[str, Any]:
    """Returns the arguments of a builder that describe the data, selected by the names of its parameters.

    `inputs` is name -> ArraySpec of the model's inputs, `outputs` the task's OutputSpec; `input_shape` is the shape of
    one example of the only input, and `num_classes` the number of units. `tokens` is the number of tokens per example
    for which the task wants an output each; 0: one output per example.

    Raises:
      ConfigError: it takes one shape but there are several inputs, or a number of units that the task leaves open.
    """
    names = parameters(builder)
    inputs = data.inputs
    outputs = data.task.outputs
    has_several_inputs = len(inputs) > 1
    first_input = next(iter(inputs))
    arguments: dict[str, Any] = {}
    # A builder that knows its own shapes takes none of these, and one that takes any keyword gets what it can use.
    if "inputs" in names or (has_several_inputs and "input_shape" not in names and _accepts(builder, "inputs")):
        arguments["inputs"] = inputs
    elif has_several_inputs and "input_shape" in names:
        raise ConfigError(
            f"model._target_={config.target}: it takes `input_shape`, of one input, but the task has "
            f"{', '.join(inputs)}; write it to take `inputs`, or set task.inputs=[{first_input}]"
        )
    elif _accepts(builder, "input_shape"):
        arguments["input_shape"] = inputs[first_input].shape
    if "tokens" in names:
        arguments["tokens"] = getattr(data.task, "tokens", 0)
    if "outputs" in names:
        arguments["outputs"] = outputs
    elif "num_classes" in names or ("inputs" not in arguments and _accepts(builder, "num_classes")):
        if outputs.units is None:
            raise ConfigError(
                f"model._target_={config.target}: it takes `num_classes`, but the task leaves the number of units "
                "open; write it to take `outputs`"
            )
        arguments["num_classes"] = outputs.units
    return arguments


def call(
    builder: Callable[..., Any],
    config: ModelConfig,
    finish: Callable[[Any], Any] = lambda model: model,
    **arguments: Any,
) -> Any:
    """Calls a builder with the config's options.

    Raises:
      ConfigError: the builder does not accept its arguments, or it raised. Any exception of it is the config's fault,
        reported in one line.
    """
    own_keras = arguments["keras"]
    # A builder that imports its Keras itself need not take it.
    if not _accepts(builder, "keras"):
        del arguments["keras"]
    _check_signature(builder, config, arguments)
    try:
        return finish(builder(**arguments, **config.options))
    except ConfigError:
        # From one of our own builders, which names the key.
        raise
    except Exception as error:
        message = f"model._target_={config.target}: the builder raised {raised(error)}"
        if config.options:
            options = ", ".join(f"model.{key}={shown(value)}" for key, value in config.options.items())
            message += f"; it was given {options}"
        keras_3 = sys.modules.get("keras")
        if keras_3 is not None and keras_3 is not own_keras:
            # Only a user's code has imported it then, and its layers and tf_keras's don't take each other's tensors.
            message += "; set engine=jax for a Keras 3 model"
        raise ConfigError(message) from error


def _accepts(builder: Callable[..., Any], name: str) -> bool:
    """Returns whether a builder has a parameter, or takes any keyword: a wrapper passes on what is inside of it."""
    try:
        own_parameters = inspect.signature(builder, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return True
    if name in own_parameters or not _accepts_any(own_parameters):
        return name in own_parameters
    wrapped_parameters = parameters(builder)
    return _accepts_any(wrapped_parameters) or name in wrapped_parameters


def _accepts_any(named_parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in named_parameters.values())


def _check_signature(builder: Callable[..., Any], config: ModelConfig, arguments: Mapping[str, Any]) -> None:
    try:
        # A wrapper is called with its own signature.
        signature = inspect.signature(builder, follow_wrapped=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model._target_={config.target}: its signature can't be read; use a plain Python function"
        ) from error
    try:
        signature.bind(**arguments, **config.options)
    except TypeError as error:
        own_names = ", ".join(signature.parameters) or "nothing"
        raise ConfigError(
            f"model._target_={config.target}: it takes {own_names}, but a builder is called with "
            f"{', '.join([*arguments, *config.options])}; {error}"
        ) from error


def check_kind(model: Any, kind: type, config: ModelConfig, library: str) -> None:
    """Checks that a builder returned a model of the Keras that it was called with. Raises ConfigError if not."""
    # The builder of a GAN typically returns its two networks.
    is_several_models = (
        isinstance(model, list | tuple) and len(model) > 1 and all(isinstance(part, kind) for part in model)
    )
    if is_several_models:
        raise ConfigError(
            f"model._target_={config.target}: the builder returned {len(model)} models, but a run trains one model "
            "with one optimizer; return one keras.Model, whose outputs task=custom combines, or write a custom step "
            "with several optimizers, as for a GAN (task=step with engine=jax)"
        )
    is_keras_3 = any(base.__module__.partition(".")[0] == "keras" for base in type(model).__mro__)
    if is_keras_3 and library == "tf_keras":
        raise ConfigError(
            f"model._target_={config.target}: the builder returned a Keras 3 model, which DTensor does not train; "
            "set engine=jax"
        )
    if not isinstance(model, kind):
        raise ConfigError(
            f"model._target_={config.target}: a builder must return a keras.Model made with its argument `keras` "
            f"({library}), but this one returned {type(model).__name__}"
        )


def with_named_outputs(model: Any, keras: Any, data: DataSpec) -> Any:
    """Returns a functional model that returns a list as one that returns a dict, if the task needs outputs by name.

    An output's name is that of its layer, by which Keras finds its loss in `compile(loss={...})`. Layers and variables
    are the same.
    """
    # A subclass may compute more than its layers; its own class has to return the names.
    is_plain = type(model).__name__ == "Functional"
    if not data.task.outputs.by_name or not is_plain or not isinstance(model.output, list | tuple):
        return model
    names = list(model.output_names)
    if len(set(names)) < len(names):
        return model
    return keras.Model(model.input, dict(zip(names, model.output, strict=True)), name=model.name)


def check_trainable(trainable: Sequence[Any], config: ModelConfig) -> None:
    """Checks that a model has something to train. Raises ConfigError if it has nothing to train."""
    if not trainable:
        raise ConfigError(
            f"model._target_={config.target}: the model has no trainable variable; add a layer with weights, or leave "
            "layer.trainable at True"
        )


def check_paths(paths: Iterable[str], config: ModelConfig) -> None:
    """Checks that no layer has a name that checkpoints reserve for other state. Raises ConfigError if not."""
    for path in paths:
        layer = path.split("/")[0]
        if layer in RESERVED:
            raise ConfigError(
                f"model._target_={config.target}: the layer name '{layer}' is reserved in checkpoints; rename the "
                f"layer, for example to '{layer}_layer'"
            )
