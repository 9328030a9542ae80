"""Gradients of convolution kernels that are right on every mesh.

Where a mesh axis splits neither the images' batch nor their height and width, devices hold copies of them. For images
that are split by height or width, and for groups of channels as in depthwise convolutions, XLA (as of jaxlib 0.10)
then counts every copy in the gradient of a convolution's kernel, with both of its partitioners and without a word.
Here that gradient, and it alone, is computed from images and gradients of which there are no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

# (array, its batch dim) -> the same, so placed that each device holds a part of its own, or each holds all of it.
Spread = Callable[[Any, int], Any]


def unused_axes(axes: Mapping[str, int], image: Sequence[str | None]) -> list[str]:
    """Returns the mesh axes that split devices and not the images.

    Args:
      axes: name to size.
      image: spec of a batch of images.
    """
    return [axis for axis, size in axes.items() if size > 1 and axis not in image]


def spread_over(mesh: Any) -> Spread:
    """Returns what splits an array's batch over all devices of a mesh, or keeps it whole where they don't divide it.

    Args:
      mesh: a jax.sharding.Mesh.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    def spread(array: Any, dim: int) -> Any:
        split = [None] * dim + [mesh.axis_names] if array.shape[dim] % mesh.size == 0 else []
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*split)))

    return spread


@contextmanager
def exact_kernel_gradients(spread: Spread | None) -> Iterator[None]:
    """Gives convolutions that are traced inside the context, gradients included, kernel gradients of spread images.

    Args:
      spread: see `spread_over`; None changes nothing.
    """
    from jax import lax

    if spread is None:
        yield
        return
    plain = lax.conv_general_dilated

    def convolution(lhs: Any, rhs: Any, *args: Any, **options: Any) -> Any:
        return _spread_convolution(lambda x, w: plain(x, w, *args, **options), _dims(lhs, rhs, args, options), spread)(
            lhs, rhs
        )

    lax.conv_general_dilated = convolution  # Keras's layers and operations, and ours, all call this name
    try:
        yield
    finally:
        lax.conv_general_dilated = plain


def _spread_convolution(plain: Callable[[Any, Any], Any], dims: tuple[int, int], spread: Spread) -> Any:
    """Returns a convolution whose kernel's gradient is computed from spread images, their batch dims given."""
    import jax

    def forward(x: Any, w: Any) -> tuple[Any, tuple[Any, Any]]:
        return plain(x, w), (x, w)

    def backward(read: tuple[Any, Any], g: Any) -> tuple[Any, Any]:
        x, w = read
        _, of_image = jax.vjp(lambda x: plain(x, w), x)
        apart = spread(x, dims[0])
        _, of_kernel = jax.vjp(lambda w: plain(apart, w), w)
        return of_image(g)[0], of_kernel(spread(g, dims[1]))[0]

    convolution = jax.custom_vjp(plain)
    convolution.defvjp(forward, backward)
    return convolution


def _dims(lhs: Any, rhs: Any, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the batch dims of a convolution's images and results, from its arguments."""
    from jax import lax

    position = 4  # of dimension_numbers, after the strides, padding and both dilations
    given = args[position] if len(args) > position else options.get("dimension_numbers")
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, given)
    return numbers.lhs_spec[0], numbers.out_spec[0]
