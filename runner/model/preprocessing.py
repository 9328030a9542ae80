"""Finds out whether a model rescales images itself, so that it is to get their bytes as they are.

Keras's `fit` never scales an image. Models that begin with `Rescaling`, or those of `keras.applications` with their
preprocessing inside, expect 0 to 255; other models are written for [0, 1]. Layers are recognized by the names of their
classes, which tf_keras and Keras 3 share: this module imports neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

import numpy as np

from runner.model.portable import flat
from runner.task.base import Task

# Layers and operations that change where pixels are, not their scale. Names without `_`, in lower case.
_MOVES = frozenset(
    (
        *("inputlayer", "identity", "dropout", "gaussiannoise", "averagepooling2d", "maxpooling2d"),
        *("resizing", "centercrop", "cropping2d", "zeropadding2d", "upsampling2d"),
        *("reshape", "permute", "flatten", "concatenate"),
        *("baserandomlayer", "baseimageaugmentationlayer", "baseimagepreprocessinglayer"),
        *("getitem", "cast", "transpose", "expanddims", "squeeze", "flip", "reverse", "concat", "stack", "repeat"),
        *("tile", "broadcastto", "resize", "pad", "copy", "converttotensor"),
        *("clip", "clipbyvalue", "mean", "rgbtograyscale", "grayscaletorgb"),
    )
)
_DIVIDE = frozenset(["truediv", "truedivide", "divide", "div", "realdiv"])
_MULTIPLY = frozenset(["multiply", "mul"])
_SUBTRACT = frozenset(["subtract", "sub"])
_ADD = frozenset(["add", "addv2", "biasadd"])
_ARITHMETIC = _DIVIDE | _MULTIPLY | _SUBTRACT | _ADD
_LIBRARIES = frozenset(["keras", "tf_keras", "keras_hub", "keras_cv"])
_PRODUCTS = frozenset(["dot", "matmul", "tensordot"])
# What takes whole numbers: fractions would all be number 0.
_IDS = frozenset(["Embedding", "CategoryEncoding", "IntegerLookup", "Hashing", "OneHot", "MultiHot"])
# Layers outside of a graph have no order. One with a larger factor, such as 0.1, may be that of a residual branch.
_STRONG = 1 / 32

# Whether a layer rescales bytes; None: it only moves pixels, so the next layer decides.
Verdict = bool | None


class UnreadableError(Exception):
    """A model computes with a constant that has no value yet."""


def settle(task: Task, models: Iterable[Any]) -> None:
    """Decides for a task, unless its config or its run did, whether a step scales the bytes of its images."""
    images = task.byte_images
    if task.scale_images is None and images:
        # A model with constants of a trace is thrown away, and built again with values.
        with suppress(UnreadableError):
            task.decide_scaling(scale=not any(takes_bytes(model, images) for model in models))


def takes_bytes(model: Any, images: Sequence[str]) -> bool:
    """Returns whether the first layers of a model after its images rescale bytes, as far as they can be seen."""
    tensors = _inputs(model)
    chosen = [tensor for name, tensor in tensors.items() if name in images]
    return _verdict(model, chosen or list(tensors.values())) is True


def _names(layer: Any) -> list[str]:
    return [kind.__name__ for kind in type(layer).__mro__]


def _inputs(model: Any) -> dict[str, Any]:
    """Returns the symbolic inputs of a functional model by name; none of another one."""
    if "Functional" not in _names(model):
        return {}
    given = getattr(model, "input", None)
    if isinstance(given, Mapping):
        return {str(name): tensor for name, tensor in given.items()}
    return {tensor.name.partition(":")[0]: tensor for tensor in model.inputs or ()}


def _verdict(layer: Any, inputs: Sequence[Any] = ()) -> Verdict:
    """Returns what a layer does to images, which enter a functional model at `inputs`; empty: at all of its own."""
    names = _names(layer)
    if "Rescaling" in names or "ImageConverter" in names:
        scale = getattr(layer, "scale", None)
        offset = getattr(layer, "offset", None)
        if scale is None:
            scale = 1.0
        if offset is None:
            offset = 0.0
        return _of_scale(scale, offset)
    if "Normalization" in names:
        return _of_normalization(layer)
    if not _IDS.isdisjoint(names):
        return True
    if "Sequential" in names:
        return _of_chain(layer.layers)
    if "Functional" in names and getattr(layer, "inputs", None):
        return _of_graph(layer, list(inputs) or list(layer.inputs))
    if _is_move(layer):
        return None
    graph = _graph_of_call(layer)
    if graph is not None:
        return _of_graph(graph, list(graph.inputs))
    inner = _inner(layer)
    if inner:
        return _of_unordered(inner)
    return _of_function(layer)


def _graph_of_call(layer: Any) -> Any | None:
    """Returns a functional model of what the `call` of a user's layer or model does; None: it has no graph.

    A `call` has none that unpacks its argument, or computes with JAX or TensorFlow itself.
    """
    package = next((name for name in map(_package, type(layer).__mro__) if name in ("keras", "tf_keras")), "")
    keras = sys.modules.get(package)
    shape = _called_with(layer)
    if keras is None or _package(type(layer)) in _LIBRARIES or not layer.weights or shape is None:
        return None
    try:
        image = keras.Input(shape[1:])
        with mock.patch.object(type(layer), "add_loss"):
            return keras.Model(image, layer.call(image))
    except Exception:  # The user's code may raise anything.
        return None


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _called_with(layer: Any) -> tuple[int | None, ...] | None:
    """Returns the shape of the one input that a layer was built with."""
    if hasattr(layer, "_build_shapes_dict"):
        shapes = list((layer._build_shapes_dict or {}).values())
        return shapes[0] if len(shapes) == 1 else None
    return getattr(layer, "_build_input_shape", None)


def _is_move(layer: Any) -> bool:
    if _package(type(layer)) in _LIBRARIES and type(layer).__name__.startswith("Random"):
        return True
    return any(name.lower() in _MOVES for name in _names(layer))


def _inner(layer: Any) -> list[Any]:
    flatten = getattr(layer, "_flatten_layers", None)
    return list(flatten(recursive=False, include_self=False)) if flatten else []


def _of_scale(factor: Any, offset: Any, *, largest: float = 1.0) -> Verdict:
    """Returns the verdict on `x * factor + offset`.

    A layer for [0, 1] keeps its range or widens it, as `2 * x - 1`, or centers it within: (x - 0.5) / 0.2.
    """
    slope = _mean(factor)
    start = _mean(offset)
    if slope == 1.0 and start == 0.0:
        return None
    if slope == 0.0:
        return False
    # Not from 0 on: `x + 1e-6` is in models for [0, 1] as well.
    is_centered = abs(start / slope) <= 1.0
    return abs(slope) < largest or not is_centered


def _of_normalization(layer: Any) -> Verdict:
    if layer.input_mean is None or layer.input_variance is None:
        # Adapted to the data, which `fit` reads as bytes.
        return True
    deviation = np.sqrt(np.asarray(layer.input_variance, np.float64))
    if getattr(layer, "invert", False):
        return False
    return _of_scale(1.0 / deviation, -np.asarray(layer.input_mean, np.float64) / deviation)


def _of_chain(layers: Iterable[Any]) -> Verdict:
    for layer in layers:
        verdict = _verdict(layer)
        if verdict is not None:
            return verdict
    return None


def _of_unordered(layers: Sequence[Any]) -> Verdict:
    verdicts = []
    for layer in layers:
        verdict = _verdict(layer)
        if verdict and "Rescaling" in _names(layer):
            verdict = _of_scale(layer.scale, layer.offset, largest=_STRONG)
        verdicts.append(verdict)
    if set(verdicts) == {None}:
        return None
    return any(verdicts)


def _of_function(layer: Any) -> Verdict:
    function = getattr(layer, "function", None)
    if function is None and not getattr(layer, "weights", True):
        function = layer.call
    if function is None:
        return False
    try:
        dark, one, bright = (function(np.full((1, 4, 4, 3), level, np.float32)) for level in (0.0, 1.0, 255.0))
    except Exception:  # The user's code may raise anything.
        return False
    if not hasattr(dark, "dtype"):
        return False
    level = _mean(dark)
    rise = _mean(bright) - level
    # `tanh`, or a discretization at 0.2 and 0.8, tells nothing apart beyond 1: it is written for [0, 1].
    if abs(_mean(one) - level) > abs(rise) / 4:
        return False
    return _of_scale(rise / 255.0, level)


def _of_graph(model: Any, tensors: Sequence[Any]) -> Verdict:
    """Returns whether an operation on a path from a functional model's inputs rescales; None if no path computes."""
    calls = list(_calls(model))
    waiting = list(tensors)
    seen = set(map(id, waiting))
    computes = False
    while waiting:
        tensor = waiting.pop()
        for operation, inputs, outputs, arguments in calls:
            if not any(one is tensor for one in inputs):
                continue
            verdict = _of_call(operation, inputs, arguments)
            if verdict:
                return True
            computes = computes or verdict is False
            if verdict is None:
                new = [one for one in outputs if id(one) not in seen]
                waiting += new
                seen.update(map(id, new))
    if computes:
        return False
    return None


def _calls(model: Any) -> Iterable[tuple[Any, list[Any], list[Any], list[Any]]]:
    for operation in getattr(model, "operations", model.layers):
        for node in operation._inbound_nodes:
            if hasattr(node, "input_tensors") and hasattr(node, "arguments"):
                yield operation, list(node.input_tensors), list(node.outputs), flat(node.arguments.args)
            elif hasattr(node, "keras_inputs"):
                arguments = flat([node.call_args, node.call_kwargs])
                yield operation, list(node.keras_inputs), flat(node.outputs), arguments


def _of_call(operation: Any, inputs: Sequence[Any], arguments: Sequence[Any]) -> Verdict:
    """Returns the verdict on a layer's call, or on an operation such as `x / 255`."""
    kind = _kind(operation)
    constants = [value for value in arguments if _is_number(value)]
    if len(inputs) == 1 and constants and kind in _PRODUCTS:
        # Weights of gray add up to about 1.
        weights = np.atleast_1d(constants[0]).sum(axis=0)
        return None if np.allclose(weights, 1.0, atol=1e-2) else _of_scale(weights, 0.0)
    if len(inputs) == 1 and constants and kind in _ARITHMETIC:
        constant = _mean(constants[0])
        is_first = constants[0] is arguments[0]
        if kind in _MULTIPLY:
            return _of_scale(constant, 0.0)
        if kind in _ADD:
            return _of_scale(1.0, constant)
        if kind in _SUBTRACT and is_first:
            return _of_scale(-1.0, constant)
        if kind in _SUBTRACT:
            return _of_scale(1.0, -constant)
        if is_first or constant == 0.0:
            return False
        return _of_scale(1.0 / constant, 0.0)
    if kind in _MOVES:
        return None
    return _verdict(operation)


def _kind(operation: Any) -> str:
    name = type(operation).__name__
    if name in ("TFOpLambda", "SlicingOpLambda"):
        name = str(operation.get_config()["function"]).rpartition(".")[2]
    return name.replace("_", "").lower()


def _is_number(value: object) -> bool:
    is_scalar = isinstance(value, int | float) and not isinstance(value, bool)
    # Keras's symbolic tensors have a dtype, too.
    return is_scalar or (hasattr(value, "dtype") and "KerasTensor" not in _names(value))


def _mean(value: Any) -> float:
    try:
        return float(np.mean(np.asarray(value, np.float64)))
    except Exception as error:  # Each library has its own.
        raise UnreadableError from error
