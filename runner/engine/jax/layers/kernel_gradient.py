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
Convolution = Callable[[jax.Array, jax.Array], jax.Array]


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
    """Gives convolutions that are traced inside the context, gradients included, kernel gradients of spread images.

    Args:
      spread: see `spread_over`; None changes nothing.
    """
    if spread is None:
        yield
        return

    def replaced(plain: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def convolution(lhs: jax.Array, rhs: jax.Array, *args: object, **options: object) -> jax.Array:
            return _spread_convolution(
                lambda x, w: plain(x, w, *args, **options), _dims(lhs, rhs, args, options), spread
            )(lhs, rhs)

        return convolution

    with private.convolution_replaced(replaced):
        yield


def _spread_convolution(plain: Convolution, dims: tuple[int, int], spread: Spread) -> Convolution:
    """Returns a convolution whose kernel's gradient is computed from spread images, their batch dims given."""

    def forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return plain(x, w), (x, w)

    def backward(read: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, w = read
        _, of_image = jax.vjp(lambda x: plain(x, w), x)
        apart = spread(x, dims[0])
        _, of_kernel = jax.vjp(lambda w: plain(apart, w), w)
        return of_image(g)[0], of_kernel(spread(g, dims[1]))[0]

    convolution = jax.custom_vjp(plain)
    convolution.defvjp(forward, backward)
    typed: Convolution = convolution
    return typed


def _dims(lhs: jax.Array, rhs: jax.Array, args: Sequence[object], options: Mapping[str, object]) -> tuple[int, int]:
    """Returns the batch dims of a convolution's images and results, from its arguments."""
    position = 4  # of dimension_numbers, after the strides, padding and both dilations
    given = args[position] if len(args) > position else options.get("dimension_numbers")
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, given)
    return numbers.lhs_spec[0], numbers.out_spec[0]
