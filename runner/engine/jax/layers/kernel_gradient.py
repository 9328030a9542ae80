"""Gradients of convolution kernels that are right on every mesh.

Where a mesh axis splits neither the images' batch nor their height and width, devices hold copies of them. For images
that are split by height or width, and for groups of channels as in depthwise convolutions, XLA (as of jaxlib 0.10)
then counts every copy in the gradient of a convolution's kernel, with both of its partitioners and without a word.
Here that gradient, and it alone, is computed from images and gradients of which there are no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runner.engine.jax import private

# (array, its batch dim) -> the same, so placed that each device holds a part of its own, or each holds all of it.
Spread = Callable[[jax.Array, int], jax.Array]


def unused_axes(axes: Mapping[str, int], image: Sequence[str | None]) -> list[str]:
    """Returns the mesh axes that split devices and not the images.

    Args:
      axes: name to size.
      image: spec of a batch of images.
    """
    return [axis for axis, size in axes.items() if size > 1 and axis not in image]


def spread_over(mesh: Mesh) -> Spread:
    """Returns what splits a batch over all devices of a mesh, or keeps it whole where they don't divide it."""

    def spread(array: jax.Array, dim: int) -> jax.Array:
        split = [None] * dim + [mesh.axis_names] if array.shape[dim] % mesh.size == 0 else []
        return lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*split)))

    return spread


@contextmanager
def exact_kernel_gradients(spread: Spread | None) -> Iterator[None]:
    """Gives every convolution whose gradients are traced inside the context kernel gradients of spread images.

    JAX's own rule makes the gradient, of all arguments of a convolution; what it makes it of is spread before.

    Args:
      spread: see `spread_over`; None changes nothing.
    """
    if spread is None:
        yield
        return

    def apart(
        images: jax.Array, gradient: jax.Array, numbers: lax.ConvDimensionNumbers
    ) -> tuple[jax.Array, jax.Array]:
        return spread(images, numbers.lhs_spec[0]), spread(gradient, numbers.out_spec[0])

    with private.kernel_gradients_of(apart):
        yield
