"""What layers may know of the run that traces them: the step, the seed, and how examples lie on the mesh.

An engine enters a scope around each call of the model. Outside of one, layers are plain Keras layers. The functions
that lay tensors are those of the engine's placer, so that this module imports no library.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

Tensor = Any  # of whatever library traces the model
Spec = Sequence[str | None]
MATCH = "match"  # in a spec: as it is


class Placer(Protocol):
    """Lays tensors on a mesh whose layouts the layers must mind."""

    def size(self, axis: str) -> int:
        """Returns the size of a mesh axis."""
        ...

    def lay(self, x: Tensor, spec: Spec, back: Spec | None) -> Tensor:
        """Returns `x` split as a spec says, see the function `lay`."""
        ...

    def axis(self, kernel: Tensor, dim: int) -> str | None:
        """Returns the axis that splits a dim of a kernel, as it is used."""
        ...


@dataclass(frozen=True)
class Scope:
    """One traced call of the model.

    Attributes:
      seed: of the run.
      step: scalar int32 tensor, micro-batches done before; None where nothing is drawn, as in an evaluation.
      placer: of the mesh; None on one plain device, and in JAX, whose compiler lays tensors by itself.
      batch: axis that splits examples.
      space: axes that split the height and the width of images.
      parts: `runner.engine.jax.layers.batch_norm.Parts`, in JAX where a mesh splits the examples and no image.
    """

    seed: int
    step: Tensor = None
    placer: Placer | None = None
    batch: str | None = None
    space: tuple[str | None, str | None] = (None, None)
    parts: Any = None


_entered: list[tuple[Scope, Counter[str]]] = []


@contextmanager
def enter(scope: Scope) -> Iterator[None]:
    """Makes a scope the current one for what is traced inside, of which no mask has been drawn yet."""
    _entered.append((scope, Counter()))
    try:
        yield
    finally:
        _entered.pop()


def current() -> Scope | None:
    """Returns the scope of the call being traced, None outside of an engine."""
    return _entered[-1][0] if _entered else None


def next_mask_key(layer: str) -> int:
    """Returns the part of the seed of a layer's next mask that the step does not change.

    It is another one each time that the layer's name comes up in a call, so that a layer that is called twice, and two
    layers of one name, draw masks of their own. Only inside of a scope.
    """
    scope, drawn = _entered[-1]
    before = drawn[layer]
    drawn[layer] += 1
    name = f"{layer}\0{before}" if before else layer  # no layer's name holds a zero byte
    return (zlib.crc32(name.encode()) ^ scope.seed) & 0x7FFFFFFF


def _placer() -> Placer | None:
    scope = current()
    return scope.placer if scope is not None else None


def lay(x: Tensor, spec: Spec, back: Spec | None = None) -> Tensor:
    """Returns `x` split as a spec says, on a mesh; elsewhere `x` itself.

    Args:
      x: tensor.
      spec: one entry a dim: an axis, None for whole, and at most one `MATCH` for as it is.
      back: how `x` lies and its gradient shall, where that is known. Both ends are then held there, in the value and
        in the gradient: else DTensor hands the new split on to the operation before, say a convolution, which has
        none.
    """
    placer = _placer()
    return x if placer is None else placer.lay(x, spec, back)


def replicate(x: Tensor) -> Tensor:
    """Returns `x` whole on every device."""
    return lay(x, [None] * len(x.shape))


def batch_axis() -> str | None:
    """Returns the axis that splits batches."""
    scope = current()
    return scope.batch if scope is not None else None


def _batch_spec(x: Tensor) -> Spec:
    return [batch_axis(), *[None] * (len(x.shape) - 1)]


def by_batch(x: Tensor) -> Tensor:
    """Returns `x` split along its first dim as batches are, all else whole."""
    return lay(x, _batch_spec(x))


def splits_space() -> bool:
    """Tells whether the mesh splits the height or width of images."""
    scope = current()
    return scope is not None and scope.placer is not None and any(scope.space)


def image_spec(shape: Sequence[int]) -> Spec:
    """Returns how (batch, height, width, channel) images are split; a dim that its axis does not divide is whole."""
    scope = current()
    assert scope is not None
    assert scope.placer is not None
    fits = [
        axis if axis is not None and size % scope.placer.size(axis) == 0 else None
        for size, axis in zip(shape[1:3], scope.space, strict=True)
    ]
    return [scope.batch, *fits, None]


def as_flat(x: Tensor) -> Tensor:
    """Returns images whose height alone is split in space, as DTensor merges dims of which the first alone is."""
    if not splits_space() or len(x.shape) != 4:
        return x
    spec = image_spec(x.shape)
    return lay(x, [*spec[:2], None, None], spec)


def whole_images(x: Tensor) -> Tensor:
    """Returns images split over the batch alone, as a convolution or a window needs them, of images split in space."""
    return lay(x, _batch_spec(x), image_spec(x.shape) if splits_space() else None)


def as_images(x: Tensor) -> Tensor:
    """Returns images split in space as the inputs are, of images split over the batch alone.

    Where no image is split in space they are held by batch: else a split that a later layer asks for, as of a dense
    kernel's rows, reaches the convolution or the window before, which has no rule for it.
    """
    return lay(x, image_spec(x.shape), _batch_spec(x)) if splits_space() else by_batch(x)


def as_rows(x: Tensor, kernel: Tensor) -> Tensor:
    """Returns a layer's input with its last dim split as its kernel's first is, where that is split over the mesh.

    Args:
      x: (batch, in) or (batch, tokens, in).
      kernel: variable (in, out).
    """
    placer = _placer()
    axis = placer.axis(kernel, 0) if placer is not None and len(x.shape) <= 3 else None
    return x if axis is None else lay(x, [batch_axis(), *([MATCH] if len(x.shape) == 3 else []), axis])


def met_by(x_bthk: Tensor, kernel: Tensor, other: Tensor) -> Tensor:
    """Returns heads whole where those that they meet are split over another axis, for which DTensor has no rule.

    Args:
      x_bthk: (batch, tokens, heads, width of a head).
      kernel: variable (in, heads, width of a head) that made them.
      other: likewise, of the heads that they meet.
    """
    placer = _placer()
    axes = set() if placer is None else {placer.axis(kernel, 1), placer.axis(other, 1)} - {None}
    return lay(x_bthk, [batch_axis(), MATCH, None, None]) if len(axes) > 1 else x_bthk
