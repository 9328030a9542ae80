"""JAX arrays by shards, as checkpoints see them; initial values; a split's arrays where steps read them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import cast

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding

from runner.cluster.team import current
from runner.config.schema import MeshConfig
from runner.data.base import Array, ArraySource, DataSource
from runner.engine.base import Shard, VariableInfo
from runner.engine.jax import private
from runner.engine.jax.processes import placed_all
from runner.engine.mappings import subset
from runner.errors import invalid
from runner.layout.mesh import device_kind
from runner.layout.mesh import size as axes_size
from runner.model.stored import StoredValue

# Bytes of a split's arrays that `engine.data=auto` keeps on each device. MNIST, CIFAR and small tables fit; of an
# accelerator's memory it is a small part.
_MOST_CACHED = 1 << 30
# Bytes up to which one call places a variable on all devices. A larger one is placed part by part, so that the host
# never holds all of it; that takes a call per device.
_MOST_WHOLE = 1 << 20


class _ShardData:
    """A device's shard of an array, copied to the host when NumPy asks for it.

    JAX keeps the host's view of an array as long as the array, and memory with a view is neither released nor donated
    to a step. This view lasts as long as its reader keeps it.
    """

    def __init__(self, data: jax.Array) -> None:
        self._data = data
        self.shape = tuple(data.shape)
        self.dtype = np.dtype(data.dtype)
        self.nbytes = data.nbytes

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        """Returns the shard, on a CPU without a copy."""
        del dtype, copy
        (device,) = self._data.devices()
        # NumPy can't read all dtypes by DLPack; bfloat16 is one of the others.
        if device.platform == "cpu" and self.dtype.kind in "fiu":
            return np.from_dlpack(self._data)
        return np.asarray(jnp.copy(self._data))


def variable_info(array: jax.Array) -> VariableInfo:
    """Returns what JAX tells of an array that it holds."""
    spec = tuple(array.sharding.spec)
    # JAX leaves out the last dims of a spec if they are not sharded.
    spec += (None,) * (array.ndim - len(spec))
    bytes_per_device = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return VariableInfo(tuple(array.shape), str(array.dtype), spec, bytes_per_device)


def shards(array: jax.Array) -> list[Shard]:
    """Returns the different shards of an array; the next step donates their memory.

    With several processes, each returns those whose first copy it holds.
    """
    own = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            start = tuple(index.start or 0 for index in shard.index)
            own.append(Shard(start, cast(Array, _ShardData(shard.data)), tuple(array.shape)))
    return own


def host_memory() -> AbstractContextManager[None]:
    """Makes arrays in the host's memory while the context lasts. An accelerator's may be too small for them."""
    if jax.default_backend() == "cpu":
        return nullcontext()
    try:
        (host, *_) = jax.local_devices(backend="cpu")
    except RuntimeError:
        # JAX_PLATFORMS names the accelerator alone.
        return nullcontext()
    context: AbstractContextManager[None] = jax.default_device(host)
    return context


def placed_in_parts(read: Callable[[tuple[slice, ...]], Array], like: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns an array on the mesh, of which the host holds one part at a time if it is large.

    `read` returns the part at an index, a slice per dim, in any dtype. The devices get copies: the first step donates
    their memory, and it must not be the host array's own.
    """
    sharding = like.sharding
    shape = like.shape
    dtype = np.dtype(like.dtype)
    assert isinstance(sharding, NamedSharding)
    if sharding.is_fully_addressable and math.prod(shape) * dtype.itemsize <= _MOST_WHOLE:
        everything = (slice(None),) * len(shape)
        return jax.device_put(np.array(read(everything), dtype), sharding, may_alias=False)
    # Devices that hold the same part are served by one read.
    devices_by_part: dict[tuple[tuple[int, int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        part = tuple(span.indices(size) for span, size in zip(index or (), shape, strict=True))
        devices_by_part.setdefault(part, []).append(device)
    placed: list[jax.Array] = []
    for part, devices in devices_by_part.items():
        values = np.asarray(read(tuple(itertools.starmap(slice, part))), dtype)
        copies = [jax.device_put(values, device, may_alias=False) for device in devices]
        # Before the next part is read: the host is to hold one at a time.
        jax.block_until_ready(copies)
        placed += copies
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


class FirstValue:
    """The value that a variable has after its build, or that its initializer draws when it is read."""

    def __init__(self, variable: keras.Variable) -> None:
        self._draw = private.take_value(variable)
        self.shape = tuple(variable.shape)

    @cached_property
    def _whole(self) -> Array:
        return np.asarray(self._draw())

    def read(self, index: tuple[slice, ...]) -> Array:
        """Returns a part, without a copy."""
        return self._whole[index]


def place_first(values: dict[str, StoredValue], kinds: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Returns initial values by path on the devices; empties the mapping, as each is released when it is placed.

    Each is drawn whole, as in a build of stock Keras, so the numbers are the same on every mesh; then each device gets
    its shard. No memory has more than one whole variable beside the shards.
    """
    arrays = {}
    # The largest variables come first, while the devices are empty: the temporaries of a random generator are several
    # times the size of its result.
    for path in sorted(kinds, key=lambda path: math.prod(kinds[path].shape), reverse=True):
        value = values.pop(path)
        arrays[path] = placed_in_parts(value.read, kinds[path])
    return arrays


def cached(
    source: DataSource, shardings: Mapping[str, NamedSharding], data: str, mesh: MeshConfig, *, planning: bool
) -> dict[str, jax.Array] | None:
    """Puts a split's arrays (N, ...) on each device, for a plan their shapes; None: the split is to be streamed.

    Raises:
      ConfigError: `engine.data=device`, and the split is not in memory.
    """
    if not isinstance(source, ArraySource):
        if data == "device":
            problem = "needs a split in memory, but its examples are read or augmented one by one"
            raise invalid("engine.data", "device", problem=problem, fix="set engine.data=auto")
        return None
    arrays = subset(source.arrays, shardings)
    if data == "host" or (data == "auto" and not _fits(sum(array.nbytes for array in arrays.values()), mesh)):
        return None
    if not planning:
        return placed_all(arrays, shardings)
    shapes = {}
    for name, array in arrays.items():
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        shapes[name] = jax.ShapeDtypeStruct(array.shape, dtype, sharding=shardings[name])
    return shapes


def _fits(size: int, mesh: MeshConfig) -> bool:
    # With several processes, each reads the examples that its devices need. Virtual devices share one memory, in which
    # each has its own copy.
    copies = axes_size(mesh.axes) if device_kind(mesh) == "cpu" else 1
    return current().count == 1 and size * copies <= _MOST_CACHED
