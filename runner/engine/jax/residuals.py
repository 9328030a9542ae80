"""Which values of a traced forward pass are in memory until the backward pass reads them.

JAX keeps every value that a gradient reads. XLA fuses element-wise operations, and computes such a value again from
what it holds anyway. So only some of JAX's values take memory: results of operations that XLA does not fuse with their
consumers (products, attention, reductions, loops), and operands that it has to write for such an operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

# A shape and a dtype; the type of JAX's abstract values has neither.
Aval = Any
# Calls of a function, which XLA inlines.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
# Operations whose results XLA computes again inside of the operation that reads them.
# `log2` and `one_minus_square` (in the gradient of tanh, as in GELU) are of JAX 0.11.
# fmt: off
_FUSED = frozenset([
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "concatenate", "convert_element_type",
    "copy", "copy_p", "cos", "div", "eq", "erf", "exp", "exp2", "expand_dims", "expm1", "ge", "gt",
    "integer_pow", "iota", "is_finite", "le", "log", "log1p", "log2", "logistic", "lt", "max", "min", "mul",
    "name", "ne", "neg", "not", "one_minus_square", "or", "pad", "pow", "real", "reduce_precision", "rem",
    "reshape", "rev", "round", "rsqrt", "select_n", "sharding_constraint", "sign", "sin", "slice", "split",
    "sqrt", "square", "squeeze", "stop_gradient", "sub", "tan", "tanh", "transpose", "xor",
])
# fmt: on
# Operations that read fused operands without having them written first.
_READS_FUSED = frozenset(
    ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"]
)


@dataclass(eq=False)
class _Value:
    """A value of the traced program, with functions inlined.

    `inputs` are those of the fused operation that computes it, None if no such operation does; `is_written` if an
    operation that is not fused reads it.
    """

    aval: Aval
    inputs: Sequence[_Value] | None = None
    is_argument: bool = False
    is_written: bool = False


def held(jaxpr: Jaxpr, outputs: Iterable[Var | Literal]) -> list[Aval]:
    """Returns the abstract values, arguments left out, that must be in memory to compute some outputs again."""
    environment: dict[Var, _Value] = {}
    for variable in (*jaxpr.invars, *jaxpr.constvars):
        environment[variable] = _Value(variable.aval, is_argument=True)
    _read(jaxpr, environment)
    # By the value's id.
    kept: dict[int, Aval] = {}
    # Values that what is kept suffices for.
    covered: set[int] = set()
    for variable in outputs:
        _keep(_value(variable, environment), kept, covered)
    return list(kept.values())


def _keep(value: _Value, kept: dict[int, Aval], covered: set[int]) -> None:
    """Adds to what is kept what suffices for a value: its sources, or itself if they take more memory.

    A dropout mask is smaller than the random bits that it is made of.
    """
    stack = [value]
    visited = set()
    sources = []
    while stack:
        current = stack.pop()
        if current.is_argument or id(current) in covered or id(current) in visited:
            continue
        visited.add(id(current))
        if current.is_written or current.inputs is None:
            sources.append(current)
        else:
            stack.extend(current.inputs)
    if value not in sources and sum(map(_bytes, sources)) > _bytes(value):
        kept[id(value)] = value.aval
        covered.add(id(value))
        return
    for source in sources:
        kept[id(source)] = source.aval
    covered |= visited


def _bytes(value: _Value) -> int:
    """Returns the size of a value; random keys have no item size and count as nothing."""
    return int(math.prod(value.aval.shape) * getattr(value.aval.dtype, "itemsize", 0))


def _value(variable: Var | Literal, environment: dict[Var, _Value]) -> _Value:
    if isinstance(variable, Literal):
        return _Value(variable.aval, is_argument=True)
    return environment[variable]


def _read(jaxpr: Jaxpr, environment: dict[Var, _Value]) -> None:
    for equation in jaxpr.eqns:
        inputs = [_value(variable, environment) for variable in equation.invars]
        name = equation.primitive.name
        if name in _CALLS:
            for variable, value in zip(equation.outvars, _called(equation, inputs), strict=True):
                environment[variable] = value
            continue
        is_fused = name in _FUSED
        if not is_fused and name not in _READS_FUSED:
            for value in inputs:
                value.is_written = True
        for variable in equation.outvars:
            environment[variable] = _Value(variable.aval, inputs if is_fused else None)


def _called(equation: JaxprEqn, inputs: Sequence[_Value]) -> Iterator[_Value]:
    (key,) = equation.params.keys() & {"jaxpr", "call_jaxpr", "fun_jaxpr"}
    closed = equation.params[key]
    inner = getattr(closed, "jaxpr", closed)
    environment: dict[Var, _Value] = {}
    for variable in inner.constvars:
        environment[variable] = _Value(variable.aval, is_argument=True)
    environment.update(zip(inner.invars, inputs, strict=True))
    _read(inner, environment)
    for variable in inner.outvars:
        yield _value(variable, environment)


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yields a trace's equations, and those of all traces that they call."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def scores(jaxpr: Jaxpr) -> list[list[Aval]]:
    """Returns the abstract values of attention's scores, those of one block together.

    They are the products of two activations, which share dims of a batch, that are larger than both: there are more
    keys than numbers per head. A block may have several, such as those of the chunks of local attention. Between those
    of two blocks there are products with weights.
    """
    groups: list[list[Aval]] = [[]]
    for equation in equations(jaxpr):
        if equation.primitive.name != "dot_general":
            continue
        _, (batch_dims, _) = equation.params["dimension_numbers"]
        if not batch_dims:
            groups.append([])
            continue
        (result,) = equation.outvars
        if all(math.prod(result.aval.shape) > math.prod(factor.aval.shape) for factor in equation.invars):
            groups[-1].append(result.aval)
    return list(filter(None, groups))
