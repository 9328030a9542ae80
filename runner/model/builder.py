"""Calling a config's builder, and what every engine refuses of it in the same words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import ConfigError, in_one_line
from runner.optim.paths import RESERVED
from runner.task.base import DataSpec


def parameters(builder: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Returns a builder's parameters; none where it does not tell."""
    try:
        return inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return {}


def given(builder: Callable[..., Any], config: ModelConfig, data: DataSpec) -> dict[str, Any]:
    """Returns what a builder is told of the data, by the names of its parameters.

    `inputs` is name -> ArraySpec of what the model is called with, `outputs` the task's OutputSpec; `input_shape` is
    the shape of one example of the only input, and `num_classes` the number of units, where there are such. `tokens`
    is for how many tokens of an example the task wants an answer each; 0: for the example as a whole.

    Args:
      builder: of the config's target.
      config: the model's.
      data: what the engine is built for.

    Raises:
      ConfigError: it asks for the one shape of several inputs, or for a number of units that the task leaves open.
    """
    taken = parameters(builder)
    inputs = data.inputs
    outputs = data.task.outputs
    several = len(inputs) > 1
    first = next(iter(inputs))
    told: dict[str, Any] = {}
    if "inputs" in taken or (several and "input_shape" not in taken):  # what takes neither is refused as it is called
        told["inputs"] = inputs
    elif several:
        raise ConfigError(
            f"model._target_={config.target}: it takes `input_shape`, of one input, and the task has "
            f"{', '.join(inputs)}; write it to take `inputs`, or set task.inputs=[{first}]"
        )
    else:
        told["input_shape"] = inputs[first].shape
    if "tokens" in taken:
        told["tokens"] = getattr(data.task, "tokens", 0)
    if "outputs" in taken:
        told["outputs"] = outputs
    elif "num_classes" in taken or "inputs" not in told:
        if outputs.units is None:
            raise ConfigError(
                f"model._target_={config.target}: it takes `num_classes`, and the task leaves the number "
                "of units open; write it to take `outputs`"
            )
        told["num_classes"] = outputs.units
    return told


def call(
    builder: Callable[..., Any],
    config: ModelConfig,
    fix: str = "",
    finish: Callable[[Any], Any] = lambda model: model,
    **told: Any,
) -> Any:
    """Calls a builder with the config's options.

    Args:
      builder: of the config's target.
      config: its options go along.
      fix: what else to do where it raises, or does not take what it is given.
      finish: is handed the builder's model, and gives what is returned; what it raises is the builder's fault too.
      **told: `keras`, which a builder that imports it itself need not take, what `given` returns, and what else the
        engine gives.

    Raises:
      ConfigError: it does not take what it is given, or it raised. Whatever that is, it is the config's fault, and
        goes into one line.
    """
    if not _takes(builder, "keras"):
        del told["keras"]
    _check_takes(builder, config, told, fix)
    try:
        return finish(builder(**told, **config.options))
    except ConfigError:  # one of our own builders knows the key
        raise
    except Exception as error:
        reason = in_one_line(f"{type(error).__name__}: {error}")
        options = ", ".join(f"model.{key}={value}" for key, value in config.options.items())
        end = (f"; it was given {options}" if options else "") + (f"; {fix}" if fix else "")
        raise ConfigError(f"model._target_={config.target}: the builder raised {reason}{end}") from error


def _takes(builder: Callable[..., Any], name: str) -> bool:
    """Tells whether a builder takes a parameter; True where it does not tell, or takes any.

    A wrapper that takes any hands on what the builder inside of it takes.
    """
    try:
        own = inspect.signature(builder, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return True
    if name in own or not _takes_any(own):
        return name in own
    inner = parameters(builder)
    return _takes_any(inner) or name in inner


def _takes_any(taken: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())


def _check_takes(builder: Callable[..., Any], config: ModelConfig, told: Mapping[str, Any], fix: str) -> None:
    """Refuses a callable that is no builder before it is called: it may do anything."""
    try:
        signature = inspect.signature(builder, follow_wrapped=False)  # a wrapper takes what it takes itself
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model._target_={config.target}: it does not tell what it takes; name a function of Python"
        ) from error
    try:
        signature.bind(**told, **config.options)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise ConfigError(
            f"model._target_={config.target}: it takes {takes}, and a builder takes "
            f"{', '.join([*told, *config.options])}; {fix or error}"
        ) from error


def check_kind(model: Any, kind: type, config: ModelConfig, library: str) -> None:
    """Checks that a builder returned a model of the Keras it was given.

    Raises:
      ConfigError: it returned something else.
    """
    if isinstance(model, list | tuple) and len(model) > 1 and all(isinstance(part, kind) for part in model):
        raise ConfigError(
            f"model._target_={config.target}: the builder returned {len(model)} models, and a run trains "
            "one model with one optimizer; two optimizers, as of a GAN, are not offered; return one keras.Model, "
            "whose outputs task=custom takes together"
        )
    if not isinstance(model, kind):
        raise ConfigError(
            f"model._target_={config.target}: a builder returns a keras.Model made with the `keras` it is "
            f"given ({library}), this one returned {type(model).__name__}"
        )


def check_trainable(trained: Sequence[Any], config: ModelConfig) -> None:
    """Checks that a model has something to train.

    Args:
      trained: its trainable variables, or their paths.
      config: the model's.

    Raises:
      ConfigError: it has nothing.
    """
    if not trained:
        raise ConfigError(
            f"model._target_={config.target}: the model has nothing to train, no variable or none that is "
            "trainable; give it a layer with weights, or leave layer.trainable at True"
        )


def check_paths(paths: Iterable[str], config: ModelConfig) -> None:
    """Checks that no layer has the name of something else that a state holds beside a model's variables.

    Args:
      paths: canonical, of the model's variables.
      config: the model's.

    Raises:
      ConfigError: names the layer.
    """
    for path in paths:
        first = path.split("/")[0]
        if first in RESERVED:
            raise ConfigError(
                f"model._target_={config.target}: a layer has the name '{first}', under which checkpoints "
                f"keep what is not the model's; name it otherwise, as '{first}_layer'"
            )


def policy_name(precision: str) -> str:
    """Returns the name that Keras's policies have for `engine.precision`; variables are float32 under both."""
    return {"float32": "float32", "bfloat16": "mixed_bfloat16"}[precision]
