"""A function of JAX computed in float64 throughout, whatever precision its code names.

The function is traced as it is, and its operations are done again with float64 in the place of every other floating
dtype. To build a model in float64 would not do: Keras 3 and users' layers cast to float32 by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")
Values = list[jax.Array]


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that gives what another does, as float64 arrays on the host.

    Args:
      function: of arrays and trees of them, with the same shapes at every call.
    """
    made: list[tuple[Callable[..., Values], Any]] = []

    def computed(*arguments: Any) -> Any:
        if not made:
            traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
            run = jax.jit(lambda *flat: _evaluated(traced.jaxpr, traced.consts, flat))
            made.append((run, jax.tree.structure(shapes)))
        run, structure = made[0]
        with jax.enable_x64(True):
            found = run(*(_lifted(np.asarray(each)) for each in jax.tree.leaves(arguments)))
        return jax.tree.unflatten(structure, [np.asarray(each) for each in found])

    return computed


def _evaluated(jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> Values:
    known = dict(zip(jaxpr.constvars, map(_lifted, consts), strict=True))
    known |= dict(zip(jaxpr.invars, map(_lifted, arguments), strict=True))

    def read(variable: Any) -> jax.Array:
        if isinstance(variable, Literal):
            return _lifted(np.asarray(variable.val, variable.aval.dtype))
        return known[variable]

    for equation in jaxpr.eqns:
        found = _done(equation, [read(each) for each in equation.invars])
        known |= dict(zip(equation.outvars, map(_lifted, found), strict=True))
    return [read(each) for each in jaxpr.outvars]


def _done(equation: JaxprEqn, values: Values) -> Sequence[jax.Array]:
    """Returns what an operation gives of float64 values."""
    name = equation.primitive.name
    parameters = dict(equation.params)
    if name in _CALLS:
        inner = parameters.get("jaxpr") or parameters["call_jaxpr"]
        if isinstance(inner, ClosedJaxpr):
            return _evaluated(inner.jaxpr, inner.consts, values)
        return _evaluated(inner, [], values)
    if name == "reduce_precision":
        return values
    if name == "bitcast_convert_type":  # bits of a number, as random generators make it of them
        values = [value.astype(each.aval.dtype) for value, each in zip(values, equation.invars, strict=True)]
    else:  # dtypes that it is told, and bodies of loops, branches, reductions and scatters
        parameters = {key: _inner(_float64(value)) for key, value in parameters.items()}
    found = equation.primitive.bind(*values, **parameters)
    return found if equation.primitive.multiple_results else [found]


def _inner(value: Any) -> Any:
    """Returns an operation's body, or its branches, in float64; anything else as it is."""
    if isinstance(value, tuple) and any(isinstance(each, ClosedJaxpr) for each in value):
        return tuple(_inner(each) for each in value)
    if isinstance(value, Jaxpr):
        return _inner(ClosedJaxpr(value, [])).jaxpr if not value.constvars else value
    if not isinstance(value, ClosedJaxpr):
        return value
    shapes = [jax.ShapeDtypeStruct(each.shape, _float64(each.dtype)) for each in value.in_avals]
    return jax.make_jaxpr(lambda *given: _evaluated(value.jaxpr, value.consts, given))(*shapes)


def _float64(value: Any) -> Any:
    """Returns float64 for another floating dtype; anything else as it is."""
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    return np.dtype(np.float64) if is_dtype and jnp.issubdtype(value, jnp.floating) else value


def _lifted(value: Any) -> Any:
    dtype = getattr(value, "dtype", None)
    return value.astype(np.float64) if dtype is not None and jnp.issubdtype(dtype, jnp.floating) else value
