"""A function of JAX computed in float64 throughout, whatever precision its code names.

The function is traced as it is, and its operations are done again with float64 in the place of every other floating
dtype. Building the model in float64 would not be enough: Keras 3 and users' layers cast to float32 by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# Operations that call a function, which is evaluated in place; `jit` and `checkpoint` under the names of several
# versions of JAX.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")
Values = list[jax.Array]


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of arrays and trees of them, with the results of another one in float64, as arrays on the
    host.
    """
    # The compiled program and the structure of its results, after the first call.
    compiled: list[tuple[Callable[..., Values], Any]] = []

    def computed(*arguments: Any) -> Any:
        if not compiled:
            traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
            program = jax.jit(lambda *flat: _evaluated(traced.jaxpr, traced.consts, flat))
            compiled.append((program, jax.tree.structure(shapes)))
        program, structure = compiled[0]
        with jax.enable_x64(True):
            leaves = [_to_float64(np.asarray(leaf)) for leaf in jax.tree.leaves(arguments)]
            results = program(*leaves)
        return jax.tree.unflatten(structure, [np.asarray(result) for result in results])

    return computed


def _evaluated(jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> Values:
    """Returns the results of a traced function, computed in float64."""
    values = dict(zip(jaxpr.constvars, map(_to_float64, consts), strict=True))
    values |= dict(zip(jaxpr.invars, map(_to_float64, arguments), strict=True))

    def read(variable: Any) -> jax.Array:
        if isinstance(variable, Literal):
            return _to_float64(np.asarray(variable.val, variable.aval.dtype))
        return values[variable]

    for equation in jaxpr.eqns:
        results = _operation(equation, [read(variable) for variable in equation.invars])
        values |= dict(zip(equation.outvars, map(_to_float64, results), strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _operation(equation: JaxprEqn, values: Values) -> Sequence[jax.Array]:
    """Returns the results of one operation on float64 values."""
    name = equation.primitive.name
    parameters = dict(equation.params)
    if name in _CALLS:
        inner = parameters.get("jaxpr") or parameters["call_jaxpr"]
        if isinstance(inner, ClosedJaxpr):
            return _evaluated(inner.jaxpr, inner.consts, values)
        return _evaluated(inner, [], values)
    if name == "reduce_precision":
        return values
    if name == "bitcast_convert_type":
        # Random generators make floats of bits in this way: only the original dtype has the bits that they set.
        originals = [variable.aval.dtype for variable in equation.invars]
        values = [value.astype(dtype) for value, dtype in zip(values, originals, strict=True)]
    else:
        # Dtypes among the parameters, and the bodies of loops, branches, reductions and scatters.
        parameters = {key: _body_in_float64(_as_float64_dtype(value)) for key, value in parameters.items()}
    results = equation.primitive.bind(*values, **parameters)
    return results if equation.primitive.multiple_results else [results]


def _body_in_float64(value: Any) -> Any:
    """Returns an operation's body, or its branches, in float64; anything else as it is."""
    if isinstance(value, tuple) and any(isinstance(branch, ClosedJaxpr) for branch in value):
        return tuple(_body_in_float64(branch) for branch in value)
    if isinstance(value, Jaxpr):
        return value if value.constvars else _body_in_float64(ClosedJaxpr(value, [])).jaxpr
    if not isinstance(value, ClosedJaxpr):
        return value
    shapes = [jax.ShapeDtypeStruct(aval.shape, _as_float64_dtype(aval.dtype)) for aval in value.in_avals]
    return jax.make_jaxpr(lambda *arguments: _evaluated(value.jaxpr, value.consts, arguments))(*shapes)


def _as_float64_dtype(value: Any) -> Any:
    """Returns float64 for another floating dtype; anything else as it is."""
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    if is_dtype and jnp.issubdtype(value, jnp.floating):
        return np.dtype(np.float64)
    return value


def _to_float64(value: Any) -> Any:
    """Returns a floating array as float64; anything else, such as integers and random keys, as it is."""
    dtype = getattr(value, "dtype", None)
    is_floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    return value.astype(np.float64) if is_floating else value
