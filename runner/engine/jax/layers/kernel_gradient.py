"""Gradients of convolution kernels that are right on every mesh.

If a mesh axis splits neither the images' batch nor their height and width, devices hold copies of them. For images
that are split by height or width, and for groups of channels as in depthwise convolutions, XLA (as of jaxlib 0.10)
then counts every copy in the gradient of a convolution's kernel, with both of its partitioners and without an error
(docs/bugs.md, 4). Here that gradient alone is computed from images and gradients of which there are no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runner.engine.jax import private
from runner.layout.axes import names_of

# (array, its batch dim) -> the same array, sharded so that each device holds a part of its own, or each holds all.
Spread = Callable[[jax.Array, int], jax.Array]


def unused_axes(axes: Mapping[str, int], image: Sequence[str | None]) -> list[str]:
    """Returns the mesh axes that split devices but no dim of the images."""
    unused = []
    used = {name for axis in image for name in names_of(axis)}
    for axis, size in axes.items():
        if size > 1 and axis not in used:
            unused.append(axis)
    return unused


def spread_over(mesh: Mesh) -> Spread:
    """Returns a function that splits a batch over all devices of a mesh.

    A batch that they don't divide is replicated.
    """

    def spread(array: jax.Array, dim: int) -> jax.Array:
        spec = PartitionSpec()
        if array.shape[dim] % mesh.size == 0:
            spec = PartitionSpec(*[None] * dim, mesh.axis_names)
        return lax.with_sharding_constraint(array, NamedSharding(mesh, spec))

    return spread


@contextmanager
def exact_kernel_gradients(spread: Spread | None) -> Iterator[None]:
    """Computes the kernel gradients of all convolutions that are traced inside from images that are spread.

    JAX's own rule computes the gradient, for all arguments of a convolution; its inputs are spread before.
    """
    if spread is None:
        yield
        return

    def prepare(
        images: jax.Array, gradient: jax.Array, numbers: lax.ConvDimensionNumbers
    ) -> tuple[jax.Array, jax.Array]:
        images_batch_dim = numbers.lhs_spec[0]
        results_batch_dim = numbers.out_spec[0]
        return spread(images, images_batch_dim), spread(gradient, results_batch_dim)

    with private.kernel_gradients_of(prepare):
        yield
