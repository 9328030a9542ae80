"""Functions of numbers and arrays under one set of names, which update rules, schedules and clipping are written in.

The names are NumPy's where NumPy has the function. `runner.task.namespace` has the functions of losses and metrics, of
the same libraries and under the same names: no name means one thing here and another there.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# A number, or an array of NumPy, TensorFlow or JAX. No type spans the three, and none of them is imported here: the
# schedules are evaluated in Python numbers while a config is checked, before any library may be loaded.
Tensor = Any
Function = Callable[..., Tensor]

# Elementwise functions that TensorFlow, JAX and NumPy have under the names used here.
_SAME_NAMES = ("square", "sqrt", "minimum", "maximum", "floor", "cos")


@dataclass(frozen=True)
class Arrays:
    """Functions of one library; all take and return its numbers or arrays, elementwise unless said otherwise.

    Attributes:
      square: x * x.
      sqrt: square root.
      rsqrt: 1 / sqrt(x).
      power: (base, exponent).
      sum: of all elements.
      minimum: of two.
      maximum: of two.
      floor: largest integer that is not larger, as a float.
      cos: of radians.
      to_float: a bool or a Python number as a float; a float32 array where the library has arrays.
    """

    square: Function
    sqrt: Function
    rsqrt: Function
    power: Function
    sum: Function
    minimum: Function
    maximum: Function
    floor: Function
    cos: Function
    to_float: Function


def of(module: ModuleType) -> Arrays:
    """Returns the functions of a library.

    Args:
      module: `math` for Python numbers, `numpy`, `tensorflow` or `jax.numpy`, imported.

    Raises:
      ValueError: another module.
    """
    makers = {"math": _of_math, "numpy": _of_numpy, "tensorflow": _of_tensorflow, "jax.numpy": _of_jax}
    name = module.__name__
    for known, make in makers.items():
        # By its `__name__` the module that is imported as tensorflow may be an inner one, as `tensorflow._api.v2.v2`.
        if name == known or name.startswith(f"{known}."):
            return make(module)
    raise ValueError(f"unknown array module {name}; known modules: {', '.join(makers)}")


def _of_math(module: ModuleType) -> Arrays:
    del module
    return Arrays(
        square=lambda x: x * x,
        sqrt=math.sqrt,
        rsqrt=lambda x: 1.0 / math.sqrt(x),
        power=math.pow,
        sum=float,
        minimum=min,
        maximum=max,
        floor=math.floor,
        cos=math.cos,
        to_float=float,
    )


def _of_numpy(np: ModuleType) -> Arrays:
    return Arrays(
        **_same_names(np),
        rsqrt=lambda x: 1.0 / np.sqrt(x),
        power=np.power,
        sum=np.sum,
        to_float=np.float32,
    )


def _of_tensorflow(tf: ModuleType) -> Arrays:
    return Arrays(
        **_same_names(tf),
        rsqrt=tf.math.rsqrt,
        power=tf.pow,
        sum=tf.reduce_sum,
        to_float=lambda x: tf.cast(x, tf.float32),
    )


def _of_jax(jnp: ModuleType) -> Arrays:
    return Arrays(
        **_same_names(jnp),
        rsqrt=importlib.import_module("jax.lax").rsqrt,
        power=jnp.power,
        sum=jnp.sum,
        to_float=lambda x: jnp.asarray(x, jnp.float32),
    )


def _same_names(module: ModuleType) -> dict[str, Function]:
    return {name: getattr(module, name) for name in _SAME_NAMES}
