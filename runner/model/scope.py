"""What layers may know of the run that traces them: the step, the seed, and how images lie on the mesh.

An engine enters a scope around each call of the model. Outside of one, layers are plain Keras layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Spec = Sequence[str | None]


@dataclass(frozen=True)
class Scope:
    """One traced call of the model.

    Attributes:
      seed: of the run.
      step: scalar int32 tensor, micro-batches done before; None where nothing is drawn, as in an evaluation.
      mesh: DTensor mesh; None on one plain device, and in JAX.
      image: axes that split an image batch: batch, height, width, channel.
      parts: `runner.engine.jax.layers.batch_norm.Parts`, in JAX where a mesh splits the examples and no image.
    """

    seed: int
    step: Any = None
    mesh: Any = None
    image: Spec = (None, None, None, None)
    parts: Any = None


def mask_key(seed: int, layer: str) -> int:
    """Returns the part of a dropout mask's seed that the step does not change."""
    return (zlib.crc32(layer.encode()) ^ seed) & 0x7FFFFFFF


_entered: list[Scope] = []


@contextmanager
def enter(scope: Scope) -> Iterator[None]:
    """Makes a scope the current one for what is traced inside."""
    _entered.append(scope)
    try:
        yield
    finally:
        _entered.pop()


def current() -> Scope | None:
    """Returns the scope of the call being traced, None outside of an engine."""
    return _entered[-1] if _entered else None


MATCH = "match"
_Wanted = Sequence[str | None]


def _on_mesh() -> Scope | None:
    scope = current()
    return scope if scope is not None and scope.mesh is not None else None


def lay(x: Any, spec: _Wanted, back: _Wanted | None = None) -> Any:
    """Returns `x` split as a spec says, on a mesh; elsewhere `x` itself.

    Args:
      x: tensor.
      spec: one entry a dim: an axis, None for whole, and at most one `MATCH` for as it is.
      back: how `x` lies and its gradient shall, where that is known. Both ends are then pinned, in the value and in
        the gradient: else DTensor hands the new split on to the operation before, say a convolution, which has none.
    """
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    scope = _on_mesh()
    if scope is None:
        return x
    mesh = scope.mesh

    def placed(value: Any, wanted: _Wanted) -> Any:
        return dtensor.relayout(value, dtensor.Layout([axis or dtensor.UNSHARDED for axis in wanted], mesh))

    if back is None:
        return placed(x, spec)
    returned, caller = back, tf.get_current_name_scope()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def both(value: Any) -> Any:
        def back_again(gradient: Any) -> Any:
            with tf.name_scope(f"gradient_tape/{caller}/"):  # as a tape names what it makes, for the plan
                return placed(placed(gradient, spec), returned)

        return placed(placed(value, returned), spec), back_again

    return both(x)


def replicate(x: Any) -> Any:
    """Returns `x` whole on every device."""
    return lay(x, [None] * len(x.shape))


def image_batch() -> str | None:
    """Returns the axis that splits batches."""
    scope = current()
    return scope.image[0] if scope is not None else None


def _batch_spec(x: Any) -> _Wanted:
    return [image_batch(), *[None] * (len(x.shape) - 1)]


def by_batch(x: Any) -> Any:
    """Returns `x` split along its first dim as batches are, all else whole."""
    return lay(x, _batch_spec(x)) if _on_mesh() else x


def splits_space() -> bool:
    """Tells whether the mesh splits the height or width of images."""
    scope = _on_mesh()
    return scope is not None and any(scope.image[1:3])


def image_spec(shape: Sequence[int]) -> _Wanted:
    """Returns how (batch, height, width, channel) images are split; a dim that its axis does not divide is whole."""
    scope = current()
    assert scope is not None
    assert scope.mesh is not None
    fits = [
        axis if axis is not None and size % scope.mesh.dim_size(axis) == 0 else None
        for size, axis in zip(shape[1:3], scope.image[1:3], strict=True)
    ]
    return [scope.image[0], *fits, None]


def as_inputs(x: Any) -> Any:
    """Returns the model's images split as the layout says, whatever split the first layers would have them in.

    Left to itself DTensor hands a layer's wish on to the operation that takes a batch out of several, and refuses it.
    """
    return lay(x, image_spec(x.shape)) if _on_mesh() else x


def as_flat(x: Any) -> Any:
    """Returns images whose height alone is split in space, as DTensor merges dims of which the first alone is."""
    if not splits_space() or len(x.shape) != 4:
        return x
    spec = image_spec(x.shape)
    return lay(x, [*spec[:2], None, None], spec)


def whole_images(x: Any) -> Any:
    """Returns images split over the batch alone, as a convolution or a window needs them, of images split in space."""
    if _on_mesh() is None:
        return x
    return lay(x, _batch_spec(x), image_spec(x.shape) if splits_space() else None)


def as_images(x: Any) -> Any:
    """Returns images split in space as the inputs are, of images split over the batch alone."""
    return lay(x, image_spec(x.shape), _batch_spec(x)) if splits_space() else x


def as_rows(x: Any, kernel: Any) -> Any:
    """Returns a layer's input with its last dim split as its kernel's first is, where that is split over the mesh.

    Args:
      x: (batch, in) or (batch, tokens, in).
      kernel: DVariable (in, out).
    """
    from tensorflow.experimental import dtensor

    layout = getattr(kernel, "_use_layout", None) or getattr(kernel, "layout", None)
    if _on_mesh() is None or layout is None or len(x.shape) > 3:
        return x
    axis = layout.sharding_specs[0]
    if axis == dtensor.UNSHARDED:
        return x
    return lay(x, [image_batch(), *([dtensor.MATCH] if len(x.shape) == 3 else []), axis])
