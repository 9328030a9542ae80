"""JAX arrays as checkpoints see them, and a split's arrays where steps read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from runner.config.schema import RunConfig
from runner.data.base import Array, ArraySource, DataSource
from runner.engine.base import Shard, VariableInfo
from runner.engine.jax.processes import placed_all
from runner.errors import invalid
from runner.layout import mesh
from runner.processes.team import current

_MOST_CACHED = 1 << 30  # bytes of a split's arrays that `engine.data=auto` keeps on the devices
_MOST_WHOLE = 1 << 20  # bytes of a variable that is handed to the devices by one call


class _Piece:
    """A device's piece of an array, brought to the host when NumPy asks for it.

    JAX keeps the host's view of an array as long as the array, and memory that is viewed is not let go of, nor given
    away by a step. This view lasts as long as who asked for it holds it.
    """

    def __init__(self, data: jax.Array) -> None:
        self._data = data
        self.shape = tuple(data.shape)
        self.dtype = np.dtype(data.dtype)
        self.nbytes = data.nbytes

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        """Returns the piece, on a CPU without a copy."""
        del dtype, copy
        if next(iter(self._data.devices())).platform == "cpu" and self.dtype.kind in "fiu":
            return np.from_dlpack(self._data)
        return np.asarray(jnp.copy(self._data))


def pieces(
    lie: NamedSharding, shape: tuple[int, ...], numbers: Mapping[jax.Device, int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Returns device number -> (start, stop) in each dim of what it holds of an array.

    Args:
      lie: how the array lies.
      shape: of the whole.
      numbers: of the mesh's devices.
    """
    return {
        numbers[device]: tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        for device, index in lie.devices_indices_map(shape).items()
    }


def variable_info(array: jax.Array) -> VariableInfo:
    """Returns what JAX tells of an array that it holds."""
    spec = tuple(array.sharding.spec) + (None,) * (array.ndim - len(array.sharding.spec))
    size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return VariableInfo(tuple(array.shape), str(array.dtype), spec, size)


def shards(array: jax.Array) -> list[Shard]:
    """Returns the different pieces of an array, as the devices hold them: the next step gives their memory away.

    Of several processes each returns those whose first copy it holds.
    """
    return [
        Shard(tuple(index.start or 0 for index in shard.index), cast(Array, _Piece(shard.data)), tuple(array.shape))
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def host_memory() -> AbstractContextManager[None]:
    """Lets arrays be made in the memory of the host, in place of an accelerator, which may be too small for them."""
    if jax.default_backend() == "cpu":
        return nullcontext()
    try:
        (host, *_) = jax.local_devices(backend="cpu")
    except RuntimeError:  # JAX_PLATFORMS names the accelerator alone
        return nullcontext()
    held: AbstractContextManager[None] = jax.default_device(host)
    return held


def on_host(array: jax.Array, dtype: str) -> jax.Array:
    """Returns a copy in the host's memory, brought there piece by piece: no view of the whole stays with the array.

    Args:
      array: this process holds all of it.
      dtype: of the copy.
    """
    found = np.empty(array.shape, array.dtype)
    with current().waiting():
        for index, data in {
            str(shard.index): (shard.index, shard.data) for shard in array.addressable_shards
        }.values():
            found[index] = np.asarray(_Piece(data))
    with host_memory():
        return jnp.array(found, dtype)


def placed_in_parts(read: Callable[[tuple[slice, ...]], Array], like: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns an array on the mesh; of a large one the host holds one part at a time.

    Args:
      read: index, a slice a dim -> that part, of any dtype. The devices get copies: the first step gives their memory
        away, and it must not be the host array's own.
      like: shape, dtype and sharding.
    """
    lies = like.sharding
    dtype = np.dtype(like.dtype)
    assert isinstance(lies, NamedSharding)
    if lies.is_fully_addressable and math.prod(like.shape) * dtype.itemsize <= _MOST_WHOLE:
        return jax.device_put(np.array(read((slice(None),) * len(like.shape)), dtype), lies, may_alias=False)
    devices: dict[tuple[tuple[int, int, int], ...], list[jax.Device]] = {}
    for device, index in lies.addressable_devices_indices_map(like.shape).items():
        spans = tuple(one.indices(size) for one, size in zip(index or (), like.shape, strict=True))
        devices.setdefault(spans, []).append(device)
    placed: dict[jax.Device, jax.Array] = {}
    for spans, those in devices.items():
        part = np.asarray(read(tuple(slice(*span) for span in spans)), dtype)
        for device in those:
            placed[device] = jax.device_put(part, device, may_alias=False)
        jax.block_until_ready([placed[device] for device in those])
    return jax.make_array_from_single_device_arrays(like.shape, lies, list(placed.values()))


def fits(size: int, config: RunConfig) -> bool:
    """Returns whether a split's arrays are to be kept on the devices.

    Args:
      size: bytes of the arrays, which each device holds; virtual devices of the CPU share one memory.
      config: `engine.data` decides, and with `auto` the size.
    """
    if current().count > 1 and config.engine.data == "auto":
        return False  # each process reads the examples that its devices need
    copies = mesh.size(config.mesh.axes) if mesh.device_kind(config.mesh) == "cpu" else 1
    return size * copies <= _MOST_CACHED if config.engine.data == "auto" else config.engine.data == "device"


def cached(
    source: DataSource, shardings: Mapping[str, NamedSharding], config: RunConfig, *, planning: bool
) -> dict[str, jax.Array] | None:
    """Puts a split's arrays on the devices; for a plan, only says that they are there.

    Args:
      source: the split.
      shardings: of the arrays that steps read, by name.
      config: the run's.
      planning: no device memory is taken.

    Returns:
      The arrays (N, ...), None where the split is to be streamed.

    Raises:
      ConfigError: `engine.data=device`, and the split is not in memory.
    """
    if not isinstance(source, ArraySource):
        if config.engine.data == "device":
            raise invalid(
                "engine.data",
                "device",
                problem="the split is read or augmented an example at a time, and does not lie in memory as arrays",
                fix="set engine.data=auto",
            )
        return None
    arrays = {name: source.arrays[name] for name in shardings}
    if not fits(sum(array.nbytes for array in arrays.values()), config):
        return None
    if planning:
        return {
            name: jax.ShapeDtypeStruct(
                array.shape, jax.dtypes.canonicalize_dtype(array.dtype), sharding=shardings[name]
            )
            for name, array in arrays.items()
        }
    return placed_all(arrays, shardings)
