"""Initial values of a model's variables, the very numbers that Keras draws, computed on the devices by shards.

A build is traced, so that its variables get no values, and the trace says how each value is computed: a seed, JAX's
random numbers, some arithmetic. JAX's generator makes each element from the seed and the element's place alone (Salmon
et al., 2011, `jax_threefry_partitionable`), so the values are the same with any sharding. Values that a builder
computed on the host, such as loaded weights, are copied part by part, one variable at a time. Values that contain
sums, such as resized embeddings, are computed as the untraced build does, whole, and then copied alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.jax.shards import placed_in_parts
from runner.errors import ConfigError
from runner.model.stored import StoredValue

# Operations that add up. Their last bits depend on the order of the sum, which XLA chooses by the sharding and by the
# operations around it, so that only the untraced build's own programs give Keras's bits.
_SUMS = ("dot_general", "conv_general_dilated", "reduce_sum", "reduce_window_sum", "cumsum", "scatter-add", "fft")
# Types of parameters that are compared by value.
_PLAIN_TYPES = (str, bytes, bool, int, float, np.dtype, type(None))

Key = tuple[object, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class TraceSlice:
    """The equations of a trace, in order, that compute one variable's value; the constants that they read, with
    values.
    """

    equations: Sequence[JaxprEqn]
    constants: Mapping[Var, jax.Array]
    result: Var | Literal

    @property
    def has_sums(self) -> bool:
        """Returns whether it adds up: then only an untraced build's operations, one by one, give the same bits."""
        return any(equation.primitive.name in _SUMS for equation in equations(self.equations))

    def key(self) -> Key:
        """Returns a key that is equal for slices that compute the same function."""
        numbers: dict[Var, int] = {}

        def atom(value: Var | Literal) -> Key:
            if isinstance(value, Literal):
                return str(value.aval), np.asarray(value.val).tobytes()
            return (numbers.setdefault(value, len(numbers)),)

        key: list[object] = [(*atom(var), str(var.aval)) for var in self.constants]
        for equation in self.equations:
            inputs = list(map(atom, equation.invars))
            parameters = _parameters(equation)
            outputs = list(map(atom, equation.outvars))
            key.append((equation.primitive.name, *inputs, *parameters, *outputs))
        key.append(atom(self.result))
        return tuple(key)

    def compute(self, constants: Sequence[jax.Array], zero: jax.Array, dtype: DTypeLike | None = None) -> jax.Array:
        """Computes the value in a traced function, each equation on its own, as an untraced build does; see
        `_unmerged`.
        """
        values: dict[Var, jax.Array] = dict(zip(self.constants, constants, strict=True))

        def read(atom: Var | Literal) -> jax.Array:
            if isinstance(atom, Literal):
                return _unmerged(jnp.asarray(atom.val, atom.aval.dtype), zero)
            return values[atom]

        for equation in self.equations:
            results = private.evaluate_equation(equation, list(map(read, equation.invars)))
            for var, result in zip(equation.outvars, results, strict=True):
                values[var] = _unmerged(result, zero)
        return jnp.asarray(read(self.result), dtype)

    def now(self) -> jax.Array:
        """Returns the value, computed at once on this process's first device."""
        return self.compute(list(self.constants.values()), jnp.uint32(0))

    def source(self) -> TraceSlice | StoredValue:
        """Returns this slice, or the host's array if the build stored a constant."""
        if self.equations or isinstance(self.result, Literal):
            return self
        return HostValue(self.constants[self.result])


def _parameters(equation: JaxprEqn) -> Key:
    """Returns an equation's parameters in a comparable form. Objects that are not plain values compare by identity."""

    def comparable(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(comparable, value))
        if isinstance(value, _PLAIN_TYPES):
            return value
        return id(value)

    return tuple((name, comparable(value)) for name, value in sorted(equation.params.items()))


def _unmerged(value: jax.Array, zero: jax.Array) -> jax.Array:
    """Returns floats unchanged, so that XLA can't merge the operations on them.

    An untraced build computes each operation in a program of its own, from numbers that the program does not know. If
    XLA merged them, a product and a sum would be rounded once instead of twice, two factors would be multiplied first,
    and a function of a known number would be computed by the compiler, in other arithmetic. The last bit of some
    values would then differ from Keras's. XLA can't know that the exclusive or with an input, `zero`, changes nothing.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    bits = jnp.dtype(f"uint{8 * value.dtype.itemsize}")
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, bits) ^ zero.astype(bits), value.dtype)


def traced_build(
    build: Callable[[], T], variables: Callable[[T], Iterable[keras.Variable]], keeps_traced: Callable[[T], bool]
) -> tuple[T, ClosedJaxpr] | None:
    """Returns what a traced build returns, and the trace of its variables' values.

    None: the build needs values, or keeps traced arrays outside of its variables.
    """
    built: list[T] = []

    def values() -> list[jax.Array]:
        built.append(build())
        return [variable.value for variable in variables(built[0])]

    try:
        trace = jax.make_jaxpr(values)()
    except ConfigError:
        # If the builder is wrong in itself, the eager build raises the same error.
        return None
    if keeps_traced(built[0]):
        return None
    return built[0], trace


def trace_slices(trace: ClosedJaxpr) -> list[TraceSlice]:
    """Returns, for each result of a trace, the part that computes it."""
    jaxpr = trace.jaxpr
    constants = dict(zip(jaxpr.constvars, trace.consts, strict=True))
    producers: dict[Var, int] = {}
    for number, equation in enumerate(jaxpr.eqns):
        for var in equation.outvars:
            producers[var] = number

    def slice_of(result: Var | Literal) -> TraceSlice:
        needed = [result]
        numbers = set[int]()
        constants_read = dict[Var, jax.Array]()
        # From the result back to constants and literals, each equation once.
        while needed:
            atom = needed.pop()
            if isinstance(atom, Literal):
                continue
            if atom in constants:
                constants_read[atom] = constants[atom]
            elif producers[atom] not in numbers:
                numbers.add(producers[atom])
                needed.extend(jaxpr.eqns[producers[atom]].invars)
        return TraceSlice([jaxpr.eqns[number] for number in sorted(numbers)], constants_read, result)

    return list(map(slice_of, jaxpr.outvars))


@dataclass(frozen=True)
class HostValue:
    """A value in the host's memory, as a builder that loads weights makes it."""

    array: jax.Array | Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return tuple(self.array.shape)

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part, without a copy."""
        return np.asarray(self.array)[index]


class Initial:
    """Initial values of a model's variables by canonical path; what the devices can draw is not computed yet."""

    def __init__(self, values: dict[str, TraceSlice | StoredValue]) -> None:
        self._values = values

    def place(self, kinds: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Returns the values on the devices; may be called once, as values on the host are released."""
        drawn: dict[str, TraceSlice] = {}
        for path in kinds:
            value = self._values.get(path)
            if isinstance(value, TraceSlice) and not value.has_sums:
                drawn[path] = value
        arrays = _drawn(drawn, kinds)
        for path in kinds:
            if path in arrays:
                continue
            value = self._values.pop(path)
            if isinstance(value, TraceSlice):
                value = HostValue(value.now())
            arrays[path] = placed_in_parts(value.read, kinds[path])
        self._values = {}
        return arrays


def _drawn(slices: Mapping[str, TraceSlice], kinds: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Computes values, each function by a program of its own.

    The kernels of a network's blocks are the same function of other seeds, and are compiled once. The largest
    variables come first, while the devices are empty: the temporaries of a random generator are several times the size
    of its result.
    """
    programs: dict[Key, Callable[..., jax.Array]] = {}
    arrays: dict[str, jax.Array] = {}
    for path in sorted(slices, key=lambda path: _bytes_per_device(kinds[path]), reverse=True):
        part = slices[path]
        kind = kinds[path]
        key = (part.key(), kind.sharding, kind.dtype)
        if key not in programs:
            programs[key] = jax.jit(partial(part.compute, dtype=kind.dtype), out_shardings=kind.sharding)
        constants = [_placed_constant(value, kind) for value in part.constants.values()]
        arrays[path] = jax.block_until_ready(programs[key](constants, np.uint32(0)))
    return arrays


def _bytes_per_device(kind: jax.ShapeDtypeStruct) -> int:
    assert isinstance(kind.sharding, NamedSharding)
    size: int = math.prod(kind.sharding.shard_shape(kind.shape)) * np.dtype(kind.dtype).itemsize
    return size


def _placed_constant(value: jax.Array, kind: jax.ShapeDtypeStruct) -> jax.Array | Array:
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        # A random generator's key, which NumPy has no type for.
        return value
    array = np.asarray(value)
    if not array.ndim or array.shape != kind.shape:
        return array
    like = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=kind.sharding)
    return placed_in_parts(HostValue(array).read, like)


def holds_traced(model: keras.Model) -> bool:
    """Returns whether a model holds traced arrays outside of its variables.

    They are of a traced build, and have no values.
    """
    if is_traced(private.operation_arguments(model)):
        return True
    layers = [model, *private.all_layers(model)]
    return any(map(is_traced, map(vars, layers)))


def is_traced(value: object) -> bool:
    """Returns whether a value is a traced array, or a list, tuple or dict with one in it."""
    if isinstance(value, jax.core.Tracer):
        return True
    if isinstance(value, keras.regularizers.Regularizer | keras.constraints.Constraint):
        # Keras's L1 holds its factor as a tensor.
        return is_traced(vars(value))
    if isinstance(value, dict):
        return any(map(is_traced, value.values()))
    return isinstance(value, list | tuple) and any(map(is_traced, value))


def equations(traced: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Yields equations, and those in all traces that they call."""
    for equation in traced:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if hasattr(inner, "eqns"):
                    yield from equations(inner.eqns)
