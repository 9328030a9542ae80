"""JAX arrays as checkpoints see them, and those of a split's images."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner import mesh
from runner.config.schema import RunConfig
from runner.engine.base import Array, Part

_MOST_HELD = 1 << 30  # bytes of a split's images that `engine.data=auto` keeps where steps read them


def pieces(array: Any) -> list[Part]:
    """Returns the different pieces of an array, copied: the next step gives their memory away."""
    found: dict[tuple[int, ...], Part] = {}
    for shard in array.addressable_shards:
        start = tuple(index.start or 0 for index in shard.index)
        if start not in found:
            found[start] = Part(start, np.array(shard.data), tuple(array.shape))
    return list(found.values())


def fits(size: int, config: RunConfig) -> bool:
    """Returns whether a split's images are to be held on the devices.

    Args:
      size: bytes of the images, which each device holds; virtual devices of the CPU share one memory.
      config: `engine.data` decides, and with `auto` the size.
    """
    copies = mesh.size(config.mesh.axes) if mesh.device_kind(config.mesh) == "cpu" else 1
    return size * copies <= _MOST_HELD if config.engine.data == "auto" else config.engine.data == "device"


def held(images: Array, where: Any, planning: bool) -> Any:
    """Puts a split's images on the devices; for a plan, only says that they are there.

    Args:
      images: uint8 (N, H, W, C).
      where: their sharding.
      planning: no device memory is taken.
    """
    import jax

    if planning:
        return jax.ShapeDtypeStruct(images.shape, images.dtype, sharding=where)
    return jax.device_put(images, where)
