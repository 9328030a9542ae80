"""Models of one branch a case: inputs -> a weight on each number -> the layer -> flattened -> two units.

The weight in front shows the layer's gradient by its input, entry by entry. A case's variables and its two outputs
depend on no other case, so that many cases are one model, whose program is compiled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from runner.data.base import ArraySpec
from tests.layers.case import Case, Tensor, found, values

UNITS = 2  # of the outputs, a case


def input_name(number: int, index: int) -> str:
    """Returns the array that a case is called with, in a model of several cases."""
    return f"x{number}_{index}"


def input_specs(cases: Sequence[Case]) -> dict[str, ArraySpec]:
    """Returns the arrays of a model of these cases."""
    return {
        input_name(number, index): tensor.spec
        for number, case in enumerate(cases)
        for index, tensor in enumerate(case.inputs)
    }


def network(library: ModuleType, weighted: type, cases: Sequence[Case]) -> Any:
    """Returns a functional model; its inputs are a dict by name, or one tensor where there is one.

    Args:
      library: `keras` or `tf_keras`, as a user imports it.
      weighted: the layer of a user's own that stands in front, of the library.
      cases: one a branch.
    """
    inputs = {
        name: library.Input(spec.shape, dtype=spec.dtype, name=name) for name, spec in input_specs(cases).items()
    }
    branches = []
    for number, case in enumerate(cases):
        given = [inputs[input_name(number, index)] for index in range(len(case.inputs))]
        branches.append(_branch(library, weighted, case, number, given))
    outputs = branches[0] if len(branches) == 1 else library.layers.Concatenate(name="outputs")(branches)
    return library.Model(inputs if len(inputs) > 1 else next(iter(inputs.values())), outputs)


def _branch(library: ModuleType, weighted: type, case: Case, number: int, given: Sequence[Any]) -> Any:
    called: list[Any] = []
    named: dict[str, Any] = {}
    for index, (tensor, x) in enumerate(zip(case.inputs, given, strict=True)):
        held, name = x, f"weighted{number}_{index}"
        if tensor.masked is None:  # what is to be masked has its weights behind the mask
            held = _prepared(library, weighted, tensor, held, name)
        if index == 0:
            for place, each in enumerate(case.before):
                held = each.made(library, name=f"before{number}_{place}")(held)
        if tensor.masked is not None and case.before:
            held = weighted(name=name)(held)
        if tensor.keyword:
            named[tensor.keyword] = held
        else:
            called.append(held)
    y = _applied(library, case, number, called, named)
    for index, each in enumerate(case.then):
        y = each.made(library, name=f"then{number}_{index}")(y)
    return _ended(library, y, number)


def _prepared(library: ModuleType, weighted: type, tensor: Tensor, x: Any, name: str) -> Any:
    if tensor.as_bool:
        return _cast(library, x, "bool")
    return weighted(name=name)(x) if tensor.dtype == "float32" else x


def _applied(library: ModuleType, case: Case, number: int, called: list[Any], named: dict[str, Any]) -> Any:
    inner = dict(values(library, case.arguments))
    if case.within:
        layer = found(library, case.within)(found(library, case.layer)(**inner), name=f"layer{number}")
    else:
        layer = found(library, case.layer)(**inner, name=f"layer{number}")
    if case.style == "dict":
        return layer(named)
    if case.style == "state":
        return layer(called[0], initial_state=called[1:], **case.call)
    if case.style == "reverse":
        return layer(layer(called[0]), reverse=True)
    if case.style == "spread" or len(called) == 1:
        y = layer(*called, **named, **case.call)
        for _ in range(case.again - 1):
            y = layer(y)
        return y
    return layer(called, **named, **case.call)


def _ended(library: ModuleType, y: Any, number: int) -> Any:
    """Returns two units of all that a layer gives."""
    flat = []
    for index, each in enumerate(_tensors(y)):
        held = each if _is_float(each) else _cast(library, each, "float32")
        flat.append(library.layers.Flatten(name=f"flat{number}_{index}")(held))
    joined = flat[0] if len(flat) == 1 else library.layers.Concatenate(name=f"joined{number}")(flat)
    return library.layers.Dense(UNITS, name=f"head{number}")(joined)


def _tensors(y: Any) -> list[Any]:
    if isinstance(y, Mapping):
        return [each for key in sorted(y) for each in _tensors(y[key])]
    return [each for item in y for each in _tensors(item)] if isinstance(y, list | tuple) else [y]


def _is_float(tensor: Any) -> bool:
    name = tensor.dtype if isinstance(tensor.dtype, str) else tensor.dtype.name
    return "float" in str(name)


def _cast(library: ModuleType, tensor: Any, dtype: str) -> Any:
    cast = library.ops.cast if hasattr(library, "ops") else library.backend.cast
    return cast(tensor, dtype)
