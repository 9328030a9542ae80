"""A model's first values, made where they lie: each device draws its own part, the very numbers that Keras draws.

A build is traced, so that its variables get no values, and the trace says how each value comes to be: a seed, JAX's
random numbers, some arithmetic. JAX's generator makes each element from the seed and the element's place alone
(Salmon et al., 2011, `jax_threefry_partitionable`), so the values are the same however they are split. What a builder
computed on the host, as loaded weights, is copied part by part, a variable at a time; what it adds up, as embeddings
that it resizes, is computed as the untraced build does, whole, and copied likewise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.sharding import NamedSharding

from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.shards import placed_in_parts
from runner.engine.jax.traces import equations
from runner.model.stored import StoredValue

_ALONE = 64 << 20  # bytes a device from which on a variable has a program of its own, and its temporaries
# Their last bits depend on the order of a sum, which XLA chooses by how a program splits it and what stands around it.
_SUMS = ("dot_general", "conv_general_dilated", "reduce_sum", "reduce_window_sum", "cumsum", "scatter-add", "fft")
_VALUES = (str, bytes, bool, int, float, np.dtype, type(None))

Key = tuple[object, ...]


@dataclass(frozen=True)
class Slice:
    """The part of a trace that makes one variable's value.

    Attributes:
      equations: in order.
      constants: what they take of the trace's constants, with their values.
      result: of the equations.
    """

    equations: Sequence[JaxprEqn]
    constants: Mapping[Var, Any]
    result: Var | Literal

    @property
    def adds_up(self) -> bool:
        """Tells whether it has sums, whose bits only the operations of an untraced build, one by one, give."""
        return any(one.primitive.name in _SUMS for one in equations(self.equations))

    def key(self) -> Key:
        """Returns what is the same for slices that compute the same of their constants."""
        numbers: dict[Var, int] = {}

        def atom(each: Var | Literal) -> Key:
            if isinstance(each, Literal):
                return str(each.aval), np.asarray(each.val).tobytes()
            return (numbers.setdefault(each, len(numbers)),)

        taken = [(*atom(var), str(var.aval)) for var in self.constants]
        made = [
            (one.primitive.name, *map(atom, one.invars), *_parameters(one), *map(atom, one.outvars))
            for one in self.equations
        ]
        return (*taken, *made, atom(self.result))

    def compute(self, constants: Sequence[jax.Array], zero: jax.Array) -> jax.Array:
        """Computes the value, in a traced function, each equation by itself as an untraced build does.

        Args:
          constants: in the order of `constants`.
          zero: uint32, 0, see `_apart`.
        """
        env: dict[Var, jax.Array] = dict(zip(self.constants, constants, strict=True))

        def read(each: Var | Literal) -> Any:
            return _apart(jnp.asarray(each.val, each.aval.dtype), zero) if isinstance(each, Literal) else env[each]

        for one in self.equations:
            results = private.evaluated(one, [read(each) for each in one.invars])
            env |= {var: _apart(value, zero) for var, value in zip(one.outvars, results, strict=True)}
        return jnp.asarray(read(self.result))

    def now(self) -> jax.Array:
        """Returns the value, computed at once on this process's first device."""
        return self.compute(list(self.constants.values()), jnp.uint32(0))

    def source(self) -> Slice | StoredValue:
        """Returns where the value comes from: this, or the host's memory where the build has computed nothing."""
        held = not self.equations and not isinstance(self.result, Literal)
        return HostValue(self.constants[self.result]) if held else self


def _parameters(equation: JaxprEqn) -> Key:
    """Returns an equation's parameters to compare them by: what is no plain value is the same if it is one object."""

    def plain(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return value if isinstance(value, _VALUES) else id(value)

    return tuple((name, plain(value)) for name, value in sorted(equation.params.items()))


def _apart(value: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns floats as they are, in a form that XLA can't merge with what is computed of them.

    An untraced build computes each operation by itself, of numbers that its program does not know. Merged, a product
    and a sum are rounded once in place of twice, and two factors are multiplied first; a function of a known number is
    computed by the compiler, in other arithmetic. A last bit of some values would then be another.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    bits = jnp.dtype(f"uint{8 * value.dtype.itemsize}")
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, bits) ^ zero.astype(bits), value.dtype)


def slices(traced: ClosedJaxpr) -> list[Slice]:
    """Returns, of each of a trace's results, what makes it."""
    jaxpr = traced.jaxpr
    constants = dict(zip(jaxpr.constvars, traced.consts, strict=True))
    makers = {var: number for number, one in enumerate(jaxpr.eqns) for var in one.outvars}

    def sliced(result: Var | Literal) -> Slice:
        needed = [result]
        found = set[int]()
        taken = dict[Var, Any]()
        while needed:
            each = needed.pop()
            if isinstance(each, Literal):
                continue
            if each in constants:
                taken[each] = constants[each]
            elif makers[each] not in found:
                found.add(makers[each])
                needed.extend(jaxpr.eqns[makers[each]].invars)
        return Slice([jaxpr.eqns[number] for number in sorted(found)], taken, result)

    return [sliced(result) for result in jaxpr.outvars]


@dataclass(frozen=True)
class HostValue:
    """A value that the host holds, as a builder that loads weights makes it."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return tuple(self.array.shape)

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part, without a copy."""
        return np.asarray(self.array)[index]


class Initial:
    """The first values of a model's variables, of which none is held yet that can be drawn."""

    def __init__(self, values: dict[str, Slice | StoredValue]) -> None:
        """Takes, by canonical path, how a variable's value is made or where it lies."""
        self._values = values

    def place(self, kinds: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Makes the values on the devices; once, for what the host held is let go of.

        Args:
          kinds: by canonical path shape, dtype and sharding of each.
        """
        drawn = {path: each for path, each in self._values.items() if isinstance(each, Slice) and not each.adds_up}
        found = _drawn({path: drawn[path] for path in kinds if path in drawn}, kinds)
        for path in kinds:
            if path not in found:
                value = self._values.pop(path)
                value = HostValue(value.now()) if isinstance(value, Slice) else value
                found[path] = placed_in_parts(value.read, kinds[path])
        self._values = {}
        return found


def _drawn(wanted: Mapping[str, Slice], kinds: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Computes values by as few programs as their numbers allow: one for all that occur equally often.

    The kernels of a network's blocks are the same function of other seeds, and are compiled once. The largest come
    first, as their temporaries are several times their size.
    """
    alike: dict[Key, list[str]] = defaultdict(list)
    for path, one in wanted.items():
        alike[(one.key(), kinds[path].sharding, kinds[path].dtype)].append(path)
    groups: dict[tuple[int, int], list[list[str]]] = defaultdict(list)
    for number, paths in enumerate(alike.values()):
        large = _bytes(kinds[paths[0]]) > _ALONE
        groups[len(paths), number if large else -1].append(paths)
    order = sorted(groups.values(), key=lambda group: -max(_bytes(kinds[paths[0]]) for paths in group))
    found: dict[str, jax.Array] = {}
    for group in order:
        program = _program([wanted[paths[0]] for paths in group], [kinds[paths[0]] for paths in group])
        for row in zip(*group, strict=True):
            given = [[_given(value, kinds[path]) for value in wanted[path].constants.values()] for path in row]
            found |= zip(row, jax.block_until_ready(program(given, np.uint32(0))), strict=True)
    return found


def _bytes(kind: jax.ShapeDtypeStruct) -> int:
    assert isinstance(kind.sharding, NamedSharding)
    size: int = math.prod(kind.sharding.shard_shape(kind.shape)) * np.dtype(kind.dtype).itemsize
    return size


def _given(value: Any, kind: jax.ShapeDtypeStruct) -> Any:
    """Returns a constant as a program takes it: one as large as the variable lies as the variable does."""
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    held = np.asarray(value)
    if not held.ndim or held.shape != kind.shape:
        return held
    return placed_in_parts(HostValue(held).read, jax.ShapeDtypeStruct(held.shape, held.dtype, sharding=kind.sharding))


def _program(made: Sequence[Slice], kinds: Sequence[jax.ShapeDtypeStruct]) -> Callable[..., list[jax.Array]]:
    def draw(constants: Sequence[Sequence[jax.Array]], zero: jax.Array) -> list[jax.Array]:
        return [
            one.compute(given, zero).astype(kind.dtype)
            for one, given, kind in zip(made, constants, kinds, strict=True)
        ]

    program: Callable[..., list[jax.Array]] = jax.jit(draw, out_shardings=[kind.sharding for kind in kinds])
    return program


def holds_traced(model: keras.Model) -> bool:
    """Tells whether a model holds, beside its variables, what a traced build computed, which has no value."""

    def is_traced(value: object) -> bool:
        if isinstance(value, jax.core.Tracer):
            return True
        if isinstance(value, keras.regularizers.Regularizer | keras.constraints.Constraint):
            return is_traced(vars(value))  # Keras's L1 holds its factor as a tensor
        if isinstance(value, dict):
            return any(map(is_traced, value.values()))
        return isinstance(value, list | tuple) and any(map(is_traced, value))

    layers = model, *private.all_layers(model)
    return is_traced(private.operands(model)) or any(is_traced(list(vars(layer).values())) for layer in layers)
