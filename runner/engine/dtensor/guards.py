"""What DTensor can't do: checks of a traced step for what it computes wrongly or crashes on, and its own errors."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tensorflow as tf

from runner.errors import ConfigError, EngineError

_UNKNOWN = "(not the model's)"
_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
# Ways in which DTensor's errors name the operation, the most exact first.
_OPERATION_PATTERNS = (r"current operation: .*?\"tf\.(\w+)\"", r"'tf\.(\w+)' op", r"\btf\.(\w+)")
_COMPILER_MARKS = ("dtensor/mlir", "layout propagation", "SPMD", "DTensor", "dtensor/cc")
_LONGEST_REASON = 200
_Names = Mapping[int, str]  # id of a variable's handle -> its path, for messages


def check_order(graph: tf.Graph, names: _Names) -> None:
    """Checks that a step reads no variable after writing it, and writes none twice.

    DTensor's all-reduce combiner keeps the order of data but not that of variable accesses: a step that depends on
    the latter is computed wrongly, without an error. A step that passes has no such order to lose.
    """
    written_ids: set[int] = set()
    for operation in graph.get_operations():
        if operation.type not in ("ReadVariableOp", *_WRITES):
            continue
        resource = operation.inputs[0]
        if id(resource) in written_ids:
            what = "writes again"
            if operation.type == "ReadVariableOp":
                what = "reads"
            raise EngineError(
                f"engine.combine_all_reduces=true: the training step {what} variable "
                f"{_variable_name(graph, resource, names)} after writing it, and DTensor's all-reduce combiner does "
                "not keep that order; set engine.combine_all_reduces=false"
            )
        if operation.type in _WRITES:
            written_ids.add(id(resource))


def _variable_name(graph: tf.Graph, resource: tf.Tensor, names: _Names) -> str:
    """Returns the path of a resource tensor's variable, through the captures of nested function graphs."""
    while hasattr(graph, "captures") and tf.is_symbolic_tensor(resource):
        captured = [outer for outer, inner in graph.captures if inner.name == resource.name]
        if not captured:
            break
        resource = captured[0]
        if id(resource) in names:
            return names[id(resource)]
        graph = graph.outer_graph
    return _UNKNOWN


def check_indexing(graph: tf.Graph) -> None:
    """Checks that a model indexes no single element and adds no dim by indexing.

    On sharded tensors DTensor answers `x[:, 0]` with wrong numbers and `x[:, None]` with a segmentation fault. Of 140
    operations on 11 layouts it was the only one whose results were wrong without an error.
    """
    for operation in graph.get_operations():
        if operation.type != "StridedSlice" or len(operation.inputs[0].shape) < 2:
            continue
        if operation.get_attr("shrink_axis_mask"):
            # Harmless if nothing uses the result: tf_keras's masked pooling takes an element to know its dtype.
            if not operation.outputs[0].consumers():
                continue
            what = "indexes a single element, such as x[:, 0]"
            fix = "tf.gather(x, 0, axis=1), or tf.unstack"
        elif operation.get_attr("new_axis_mask"):
            what = "adds a dim by indexing, such as x[:, None]"
            fix = "tf.expand_dims(x, 1)"
        else:
            continue
        raise ConfigError(
            f"model._target_: operation {operation.name} {what}, which DTensor computes wrongly on a mesh; "
            f"set engine=jax, or in code of your own use {fix}"
        )


def check_resources(graph: tf.Graph, names: _Names) -> None:
    """Checks that a traced step uses no variable but the state's.

    A plain `tf.Variable` of one device is wrong on a mesh without an error: `assign_add(1)` on 8 devices gave 40.
    """
    for operation in graph.get_operations():
        for resource in operation.inputs:
            if resource.dtype == tf.resource and _variable_name(graph, resource, names) == _UNKNOWN:
                raise ConfigError(
                    f"model._target_: operation {operation.name} uses a variable or table that is not one of the "
                    "model's weights and so is not on the mesh; set engine=jax, or create it "
                    "with the layer's add_weight and read it as an attribute of the layer"
                )


def compile_error(text: str) -> ConfigError:
    """Returns the error for a step that DTensor could not compile."""
    operation = "(unnamed)"
    for pattern in _OPERATION_PATTERNS:
        match = re.search(pattern, text)
        if match:
            operation = match.group(1)
            break
    return ConfigError(
        f"layout and model don't fit: DTensor can't compile operation {operation} as it is sharded ({_reason(text)}); "
        "use layout=replicated or mesh=single, or set engine=jax"
    )


def is_compile_error(text: str) -> bool:
    """Returns whether an error is of DTensor's compiler, and not of a running step."""
    return any(mark in text for mark in _COMPILER_MARKS)


def _reason(text: str) -> str:
    match = re.search(r"error: (.*)", text)
    line = match.group(1) if match else text.strip().splitlines()[0]
    return " ".join(line.split())[:_LONGEST_REASON].rstrip(". ")
