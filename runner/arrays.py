"""The few functions of tensors that the optimizers' formulas need, under one set of names for every array module."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Tensor = Any  # a number, or an array of TensorFlow or JAX, whose types no checker knows
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Arrays:
    """Functions of one array module; all take and give its tensors, elementwise unless said otherwise.

    Attributes:
      square: x * x.
      sqrt: square root.
      rsqrt: 1 / sqrt(x).
      power: (base, exponent).
      total: sum of all elements.
      minimum: of two.
      maximum: of two.
      floor: downwards.
      cos: of radians.
      number: a truth value or a Python number as a float, a float32 tensor where the module has tensors.
    """

    square: Function
    sqrt: Function
    rsqrt: Function
    power: Function
    total: Function
    minimum: Function
    maximum: Function
    floor: Function
    cos: Function
    number: Function


def of(module: ModuleType) -> Arrays:
    """Returns the functions of `math`, `tensorflow` or `jax.numpy`.

    Args:
      module: the imported module.

    Raises:
      ValueError: another module.
    """
    makers = {"math": _python, "tensorflow": _tensorflow, "jax.numpy": _jax}
    name = module.__name__
    for known, make in makers.items():
        if name == known or name.startswith(f"{known}."):
            return make(module)
    raise ValueError(f"array module {name} is unknown, known are {', '.join(makers)}")


def _python(module: ModuleType) -> Arrays:
    del module
    return Arrays(
        square=lambda x: x * x,
        sqrt=math.sqrt,
        rsqrt=lambda x: 1.0 / math.sqrt(x),
        power=math.pow,
        total=float,
        minimum=min,
        maximum=max,
        floor=math.floor,
        cos=math.cos,
        number=float,
    )


def _tensorflow(tf: ModuleType) -> Arrays:
    return Arrays(
        **_shared(tf),
        rsqrt=tf.math.rsqrt,
        power=tf.pow,
        total=tf.reduce_sum,
        number=lambda x: tf.cast(x, tf.float32),
    )


def _jax(jnp: ModuleType) -> Arrays:
    return Arrays(
        **_shared(jnp),
        rsqrt=importlib.import_module("jax.lax").rsqrt,
        power=jnp.power,
        total=jnp.sum,
        number=lambda x: jnp.asarray(x, jnp.float32),
    )


def _shared(module: ModuleType) -> dict[str, Function]:
    """Returns what both call by our names."""
    return {name: getattr(module, name) for name in ("square", "sqrt", "minimum", "maximum", "floor", "cos")}
