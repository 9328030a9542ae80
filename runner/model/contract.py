"""Checks that a run does everything that Keras's `fit` would do for a model, or rejects the model.

Based on tf_keras 2.21 (`Model.train_step`, `Optimizer.apply_gradients`) and Keras 3.15 (`JAXTrainer.train_step`,
`BaseOptimizer.apply`). Like these, an engine honors:

- a variable's constraint, applied to the trainable variables after each update (`engine=jax`);
- losses that layers add, also those of the inputs, and activity regularizers: added to the mean loss; with gradient
  accumulation the loss of each microbatch counts for its share, as in Keras's `gradient_accumulation_steps`;
- variables that a training call changes, integers too, and the states of random generators;
- `trainable`, as it is when the builder returns; `training`, as the layers receive it.

This module rejects models that need more of `fit`. It looks at their attributes only and imports no library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import CompiledError, ConfigError

# Of the model's library, which is not imported here.
Tensor = Any
Constraint = Callable[[Tensor], Tensor]

# Methods of a model that `fit` and `evaluate` call, and a run does not.
_FIT_METHODS = (
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

# Packages of layers that need no check with padding; a model with layers of other packages is checked by `.padding`.
_LIBRARIES = ("keras", "tf_keras", "tensorflow", "runner")

# Layers of these libraries that run a user's code: Lambda, and tf_keras's wrappers of TensorFlow calls on symbolic
# tensors.
_USER_CODE_LAYERS = ("Lambda", "TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod", "InstanceProperty")


def check(
    model: object,
    layers: Sequence[object],
    base: type,
    config: ModelConfig,
    trainable: Collection[str] = ("float32",),
    masked: str | None = None,
    has_masks: bool = False,
) -> None:
    """Checks that a model needs nothing of `fit` that a run would leave out.

    `masked` is `Task.masked_input`; with `has_masks` the loss knows all masks.

    Raises:
      ConfigError: it does.
    """
    check_steps(model, base, config)
    problems = list(map(_layer_problem, [*layers, model]))
    problems += [_variables_problem(model, trainable), "" if has_masks else _outputs_problem(model, masked)]
    for problem in problems:
        if problem:
            raise ConfigError(f"model._target_={config.target}: {problem}")


def check_steps(model: object, base: type, config: ModelConfig) -> None:
    """Checks that a model is not compiled and has no training methods, before it is called for the first time.

    The call would fail for a model, such as a GAN, that computes in its own `train_step` and has no `call`.
    """
    for method in overridden(model, base):
        raise ConfigError(
            f"model._target_={config.target}: {type(model).__name__} has a {method} of its own, which a run does not "
            "call; write the loss and the metrics as a task (task._target_), use add_loss in a layer's call, or write "
            "the method as a custom step (task=step with engine=jax), which may have several optimizers as a GAN does"
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        problem = f"the model is compiled, with optimizer {type(optimizer).__name__}, but the config has others"
        fix = "leave task and optimizer at their defaults with engine=jax, set task=compiled, or remove that call"
        raise CompiledError(f"model._target_={config.target}: {problem}; {fix}")


def overridden(model: object, base: type, without: Collection[str] = ()) -> list[str]:
    """Returns the methods of `fit` and `evaluate` that a model has of its own."""
    methods = []
    for method in _FIT_METHODS:
        is_overridden = method in vars(model) or getattr(type(model), method, None) is not getattr(base, method, None)
        if is_overridden and method not in without:
            methods.append(method)
    return methods


def _layer_problem(layer: object) -> str:
    name = getattr(layer, "name", type(layer).__name__)
    if getattr(layer, "compute_dtype", None) == "float16":
        return (
            f"layer {name} computes in float16, which needs loss scaling, but a run does not scale the loss; leave "
            "out the layer's dtype and set engine.precision=bfloat16"
        )
    metrics = getattr(layer, "metrics", None) or []
    if metrics:
        metric = getattr(metrics[0], "name", metrics[0])
        return (
            f"layer {name} has the metric {metric}, which a run does not report; remove it, or make it a metric of "
            "the task"
        )
    # All layers of tf_keras have the attribute `stateful`, so only recurrent ones, which have a cell, are checked.
    if getattr(layer, "stateful", False) is True and hasattr(layer, "cell"):
        return (
            f"layer {name} is a stateful RNN, which carries its state from one batch to the next, but consecutive "
            "batches of a run are unrelated; set stateful=False"
        )
    return ""


def _variables_problem(model: object, dtypes: Collection[str]) -> str:
    for variable in _listed(model, "trainable_variables"):
        name = _variable_name(variable)
        dtype = getattr(variable.dtype, "name", variable.dtype)
        if getattr(variable, "overwrite_with_gradient", False):
            return (
                f"variable {name} is overwritten by its gradient, as in float8 layers, which a run's optimizers do "
                "not support; remove model.quantize(...)"
            )
        if dtype not in dtypes:
            return (
                f"trainable variable {name} has dtype {dtype}, but a run's optimizers work in float32; leave out the "
                "layer's dtype, and set engine.precision=bfloat16 to compute in bfloat16"
            )
    return ""


def _outputs_problem(model: object, masked: str | None) -> str:
    outputs = _listed(model, "outputs")
    names = _listed(model, "output_names")
    for index, output in enumerate(outputs):
        mask = getattr(output, "_keras_mask", None)
        if mask is None or (masked is not None and _is_of_zeros(mask, _listed(model, "inputs"), masked)):
            continue
        subject = "its output"
        if len(outputs) > 1 and index < len(names):
            subject = f"its output {names[index]}"
        fix = "pool the masked steps with a layer that ends the mask, such as keras.layers.GlobalAveragePooling1D"
        if len(output.shape) > 2:
            fix = (
                "if Embedding(mask_zero=True) makes it, set engine=jax task.label_weight=mask; else end it before the "
                "last layer with a layer whose compute_mask returns None, and use task.ignore_index or task.padding"
            )
        return f"{subject} carries a mask of the steps, by which Keras weights the loss and a run does not; {fix}"
    return ""


def _is_of_zeros(mask: object, inputs: Sequence[object], name: str) -> bool:
    """Returns whether a mask of Keras 3 is `input != 0`, as `Embedding(mask_zero=True)` computes it of its input."""
    history = getattr(mask, "_keras_history", None)
    operation = getattr(history, "operation", None)
    if history is None or operation is None or type(operation).__name__ != "NotEqual":
        return False
    masked, value = operation._inbound_nodes[history.node_index].arguments.args
    is_named = len(inputs) == 1 or getattr(masked, "name", "") == name
    return any(masked is one for one in inputs) and is_named and value == 0


def _listed(owner: object, attribute: str) -> list[Any]:
    return list(getattr(owner, attribute, None) or [])


def _variable_name(variable: object) -> str:
    """Returns the path of a Keras 3 variable, else the name of a TensorFlow variable."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", variable)).removesuffix(":0")


def check_cover(
    paths: Mapping[str, object], variables: Iterable[object], config: ModelConfig, library: str = "the model's library"
) -> None:
    """Checks that each variable has a path, so that all are trained and saved."""
    with_path = set(map(id, paths.values()))
    # By id: a variable that is listed twice counts once.
    without_path = {}
    for variable in variables:
        if id(variable) not in with_path:
            without_path[id(variable)] = _variable_name(variable)
    if without_path:
        names = ", ".join(without_path.values())
        raise ConfigError(
            f"model._target_={config.target}: {len(without_path)} of its variables, {names}, "
            f"have no path of their own in {library}, so that they would be neither trained nor saved; give the "
            "layers of nested models unique names, and store layers in attributes, lists or dicts"
        )


def has_own_code(layers: Iterable[object]) -> bool:
    """Returns whether a model has a layer that runs code of a user. Nothing is known of its computation."""
    return any(map(_runs_user_code, layers))


def _runs_user_code(layer: object) -> bool:
    package = type(layer).__module__.split(".")[0]
    if package not in _LIBRARIES or type(layer).__name__ in _USER_CODE_LAYERS:
        return True
    # Keras 3 lists all operations of a functional model here; one without weights is a bare operation, no layer.
    return not all(hasattr(operation, "weights") for operation in _listed(layer, "operations"))


def has_activity_loss(layers: Iterable[object]) -> bool:
    """Returns whether a layer adds a loss of its output (an activity regularizer)."""
    return any(getattr(layer, "activity_regularizer", None) is not None for layer in layers)
