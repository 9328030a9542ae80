"""Walks traces (jaxprs)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jax.extend.core import JaxprEqn


def equations(traced: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Yields equations, and those in all traces that they call."""
    for equation in traced:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if hasattr(inner, "eqns"):
                    yield from equations(inner.eqns)
