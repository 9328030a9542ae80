"""What Keras's `fit` does around a step: what of it a run honors, and the line that refuses each other thing by name.

Read in tf_keras 2.21 (`Model.train_step`, `Optimizer.apply_gradients`) and Keras 3.15 (`JAXTrainer.train_step`,
`BaseOptimizer.apply`). An engine honors, as they do:

- a variable's constraint, applied to the trainable variables after each update;
- losses that layers add, those of the inputs too, and activity regularizers: added to the mean loss as they are; of a
  step in micro-batches each counts for its share, as in Keras's `gradient_accumulation_steps`;
- variables that a training call changes, whole numbers too, and the states of random generators;
- `trainable`, as it is when the builder returns; `training`, as the layers are told.

What this module refuses is what `fit` would do and a run would not. It looks at models by their attributes alone and
imports no library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import ConfigError

Tensor = Any  # of the model's library
Constraint = Callable[[Tensor], Tensor]

# Methods of a model that `fit` and `evaluate` call, and a run does not.
_STEPS = (
    "train_step",
    "test_step",
    "compute_loss",
    "compute_loss_and_updates",
    "compute_metrics",
    "make_train_function",
    "make_test_function",
    "fit",
    "evaluate",
)
_LIBRARIES = ("keras", "tf_keras", "tensorflow", "runner")
# Layers of a library whose arithmetic is a user's.
_HOLDS_OWN_CODE = ("Lambda", "TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod", "InstanceProperty")


def check(
    model: object, layers: Sequence[object], base: type, config: ModelConfig, trainable: Collection[str] = ("float32",)
) -> None:
    """Checks that a model asks for nothing of `fit` that a run would leave out.

    Args:
      model: built.
      layers: all of its layers, and theirs.
      base: the library's `Model`, whose steps a run stands for.
      config: the model's.
      trainable: dtypes that the engine's optimizers work in.

    Raises:
      ConfigError: names what the model asks for, and a fix.
    """
    of_layers = map(_of_layer, [*layers, model])
    for reason in (_of_model(model, base), *of_layers, _of_variables(model, trainable), _of_outputs(model)):
        if reason:
            raise ConfigError(f"model._target_={config.target}: {reason}")


def _of_model(model: object, base: type) -> str:
    for name in _STEPS:
        own = name in vars(model) or getattr(type(model), name, None) is not getattr(base, name, None)
        if own and _has_several_optimizers(model, base):
            return (
                f"{type(model).__name__} trains by a {name} of its own with an optimizer per network, as a GAN does; "
                "a run has one optimizer and one loss, and two optimizers are not offered; train one network at a "
                "time, or use Keras's fit"
            )
        if own:
            return (
                f"{type(model).__name__} has a {name} of its own, which a run does not call; write the loss and the "
                "metrics as a task (task._target_), or add_loss in a layer's call, and leave the method out"
            )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        return (
            f"the model is compiled, with optimizer {type(optimizer).__name__} and loss "
            f"{_shown(getattr(model, 'loss', None))}, and a run takes optimizer, loss and metrics from its config; "
            "leave model.compile(...) out, or load a model with compile=False"
        )
    return ""


def _has_several_optimizers(model: object, base: type) -> bool:
    """Returns whether a model takes an optimizer for each of several networks, or is several networks and no model."""
    compiles = getattr(type(model), "compile", None)
    if compiles is not None and compiles is not getattr(base, "compile", None):
        taken = inspect.signature(compiles).parameters
        if sum("opt" in name.lower() for name in taken) > 1:
            return True
    held = [value for value in vars(model).values() if hasattr(value, "apply_gradients")]
    if len({id(value) for value in held}) > 1:
        return True
    parts = {id(value) for value in vars(model).values() if isinstance(value, base)}
    has_call = getattr(type(model), "call", None) is not getattr(base, "call", None)
    return len(parts) > 1 and not has_call


def check_steps(model: object, base: type, config: ModelConfig) -> None:
    """Checks that a model leaves its training to a run, before it is called for the first time.

    A model that is only called in a `train_step` of its own, as a GAN, need not have a `call`.

    Raises:
      ConfigError: it has a method that `fit` calls.
    """
    if reason := _of_model(model, base):
        raise ConfigError(f"model._target_={config.target}: {reason}")


def _of_layer(layer: object) -> str:
    name = getattr(layer, "name", type(layer).__name__)
    if getattr(layer, "compute_dtype", None) == "float16":
        return (
            f"layer {name} computes in float16, whose gradients need the loss to be scaled, which a run does not do; "
            "leave the layer's dtype out and set engine.precision=bfloat16"
        )
    metrics = getattr(layer, "metrics", None) or []
    if metrics:
        return (
            f"layer {name} keeps the metric {getattr(metrics[0], 'name', metrics[0])}, which a run does not report; "
            "leave it out, or report it as a metric of the task"
        )
    # Of tf_keras's layers each has the attribute, and one that holds an RNN tells of it.
    if getattr(layer, "stateful", False) is True and hasattr(layer, "cell"):
        return (
            f"layer {name} is a stateful RNN, which hands its state from one batch to the next, and a run's batches "
            "do not follow one another; set stateful=False"
        )
    return ""


def _of_variables(model: object, dtypes: Collection[str]) -> str:
    for variable in _several(model, "trainable_variables"):
        dtype = getattr(variable.dtype, "name", variable.dtype)
        if getattr(variable, "overwrite_with_gradient", False):
            return (
                f"variable {_name(variable)} is set by its gradient, as float8 layers do, and a run's optimizers do "
                "not do that; leave model.quantize(...) out"
            )
        if dtype not in dtypes:
            return (
                f"trainable variable {_name(variable)} has dtype {dtype}, and a run's optimizers work in float32; "
                "leave the layer's dtype out, and set engine.precision=bfloat16 to compute in it"
            )
    return ""


def _of_outputs(model: object) -> str:
    for output in _several(model, "outputs"):
        if getattr(output, "_keras_mask", None) is not None and len(output.shape) > 2:
            return (
                "its output carries a mask of the steps (tokens), by which Keras weighs the loss and a run does not; "
                "end the mask before the last layer, by a layer whose compute_mask returns None (or leave mask_zero "
                "out), and weigh the labels: task.label_weight names an array of weights for task=language_model, and "
                "a loss of task=custom reads one from its batch; for one output per example, pool the steps first, "
                "as keras.layers.GlobalAveragePooling1D"
            )
        if getattr(output, "_keras_mask", None) is not None:
            return (
                "its output carries a mask, by which Keras weighs the loss and a run does not; take the masked steps "
                "together by a layer that ends the mask, as keras.layers.GlobalAveragePooling1D or an RNN"
            )
    return ""


def _several(model: object, attribute: str) -> list[Any]:
    """Returns what a model lists of its own; nothing where it does not tell."""
    return list(getattr(model, attribute, None) or [])


def _shown(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "name", type(value).__name__)


def _name(variable: object) -> str:
    return str(getattr(variable, "path", None) or getattr(variable, "name", variable)).removesuffix(":0")


def check_cover(
    paths: Mapping[str, object], variables: Iterable[object], config: ModelConfig, library: str = "the model's library"
) -> None:
    """Checks that each of a model's variables has one path, so that all are trained and saved.

    Args:
      paths: canonical path -> variable.
      variables: all that the model has, in its order; one may be listed twice.
      config: the model's.
      library: for the message.

    Raises:
      ConfigError: names the variables that no path leads to.
    """
    named = {id(variable) for variable in paths.values()}
    left = {id(variable): _name(variable) for variable in variables if id(variable) not in named}
    if left:
        raise ConfigError(
            f"model._target_={config.target}: {len(left)} of its variables, {', '.join(left.values())}, "
            f"have no path of their own in {library}, so that they would be neither trained nor saved; give the "
            "layers of nested models names of their own, and hold layers in attributes, lists or dicts"
        )


def constraints(variables: Mapping[str, object]) -> dict[str, Constraint]:
    """Returns path -> constraint, of the variables that have one.

    Args:
      variables: by canonical path, as the builder's layers made them: those on a mesh may have lost theirs.
    """
    found = {path: getattr(variable, "constraint", None) for path, variable in variables.items()}
    return {path: constraint for path, constraint in found.items() if constraint is not None}


def has_own_code(layers: Iterable[object]) -> bool:
    """Tells whether a model computes anything that is not a library's layer: what that does is not known."""
    return any(
        type(layer).__module__.split(".")[0] not in _LIBRARIES
        or type(layer).__name__ in _HOLDS_OWN_CODE
        or not all(hasattr(each, "weights") for each in _several(layer, "operations"))  # Keras 3's bare operations
        for layer in layers
    )


def has_activity_loss(layers: Iterable[object]) -> bool:
    """Tells whether a layer adds a loss of what it gives."""
    return any(getattr(layer, "activity_regularizer", None) is not None for layer in layers)
