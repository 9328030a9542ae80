"""How a step rounds: the terms of its longest sum and the lowest precision that it computes in, by its trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp

# Lowest first.
_PRECISIONS = ("bfloat16", "float16", "tensorfloat32", "float32")
_PRODUCTS = ("dot_general", "conv_general_dilated")
# What products of float32 are computed in by default.
_DEFAULT = {"gpu": "tensorfloat32", "tpu": "bfloat16"}


def longest_sum(trace: jax.core.Jaxpr) -> int:
    """Returns the number of terms of the longest sum of a trace."""
    longest = 1
    for equation in equations(trace):
        name = equation.primitive.name
        shapes = [getattr(x.aval, "shape", ()) for x in equation.invars]
        terms = 1
        if name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            terms = math.prod(shapes[0][dim] for dim in contracted)
        elif name == "conv_general_dilated":
            out_features = shapes[1][equation.params["dimension_numbers"].rhs_spec[0]]
            terms = math.prod(shapes[1]) // max(out_features, 1)
        elif name == "reduce_sum":
            terms = math.prod(shapes[0][dim] for dim in equation.params["axes"])
        elif name in ("scatter-add", "cumsum"):
            terms = math.prod(shapes[-1])
        longest = max(longest, terms)
    return longest


def lowest(traces: Sequence[jax.core.Jaxpr], stored: Iterable[str]) -> str:
    """Returns the lowest precision that traces compute in: `bfloat16`, `float16`, `tensorfloat32` or `float32`.

    `stored` are the dtypes of what they read.
    """
    found = {"float32", *stored}
    for equation in chain.from_iterable(map(equations, traces)):
        for output in equation.outvars:
            name = str(getattr(output.aval, "dtype", ""))
            if name.startswith("float8"):
                name = "bfloat16"
            found.add(name)
        if equation.primitive.name in _PRODUCTS:
            found.add(_of_product(equation))
    return min(found & set(_PRECISIONS), key=_PRECISIONS.index)


def _of_product(equation: Any) -> str:
    """Returns what the product of an equation is computed in on JAX's default devices."""
    precision = equation.params.get("precision")
    if precision is None and jax.config.jax_default_matmul_precision is not None:
        precision = jax.config.jax_default_matmul_precision
    is_default = precision is None or "DEFAULT" in str(precision).upper()
    is_float32 = all(getattr(x.aval, "dtype", None) == jnp.float32 for x in equation.invars)
    if is_default and is_float32:
        return _DEFAULT.get(jax.default_backend(), "float32")
    return "float32"


def equations(trace: jax.core.Jaxpr) -> Iterator[Any]:
    """Yields the equations of a trace and of those that it calls."""
    for equation in trace.eqns:
        yield equation
        for value in equation.params.values():
            if not isinstance(value, tuple | list):
                value = [value]
            for called in value:
                if hasattr(called, "eqns"):
                    yield from equations(called)
