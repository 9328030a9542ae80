"""State of the traced model call that layers can read: seed, step, and how the batch is sharded over the mesh.

An engine enters a scope around each call of the model. Outside of a scope, layers are plain Keras layers. The engine's
placer shards the tensors, so that this module imports no library.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Of the library that traces the model, which is not imported here.
Tensor = Any
Spec = Sequence[str | None]

# `runner.engine.dtensor.devices.MeshPlacer`, which reshards tensors on a mesh whose layouts the layers must respect.
Placer = Any

# In a spec: the dim stays sharded as it is.
MATCH = "match"


@dataclass(frozen=True)
class Scope:
    """One traced call of the model.

    Attributes:
      seed: of the run.
      step: scalar int32 tensor, number of earlier microbatches; None if nothing random is drawn, as in an evaluation.
      placer: the placer of the mesh; None on one plain device, and with JAX, whose compiler reshards by itself.
      batch: axis that shards the examples.
      space: axes that shard the height and the width of images.
    """

    seed: int
    step: Tensor = None
    placer: Placer | None = None
    batch: str | None = None
    space: tuple[str | None, str | None] = (None, None)


# The entered scopes, the current one last, each with the number of masks drawn per layer name.
_stack: list[tuple[Scope, Counter[str]]] = []


@contextmanager
def enter(scope: Scope) -> Iterator[None]:
    """Makes a scope the current one while the context lasts, with no masks drawn yet."""
    _stack.append((scope, Counter()))
    try:
        yield
    finally:
        _stack.pop()


def current() -> Scope | None:
    """Returns the scope of the call being traced; None outside of an engine."""
    if not _stack:
        return None
    scope, _ = _stack[-1]
    return scope


def next_mask_key(layer: str) -> int:
    """Returns the part of a dropout mask's seed that does not depend on the step.

    The key differs for each call with the same layer name, so that a layer that is called twice, and two layers of one
    name, draw different masks. Must be called inside of a scope.
    """
    scope, drawn = _stack[-1]
    earlier_calls = drawn[layer]
    drawn[layer] += 1
    name = layer
    if earlier_calls:
        # The zero byte keeps a second call of `dropout` apart from a layer called `dropout1`.
        name = f"{layer}\0{earlier_calls}"
    # 31 bits, so that the key is a non-negative int32.
    return (zlib.crc32(name.encode()) ^ scope.seed) & 0x7FFFFFFF


def _placer() -> Placer | None:
    scope = current()
    if scope is None:
        return None
    return scope.placer


def lay(x: Tensor, spec: Spec, back: Spec | None = None) -> Tensor:
    """Returns `x` sharded by a spec, on a mesh; without a placer `x` itself.

    `back` is the current sharding of `x` and that of its gradient, if known: both ends are then fixed. Otherwise
    DTensor propagates the new sharding to the operation before, which may not support it; convolutions do not.
    """
    placer = _placer()
    if placer is None:
        return x
    return placer.lay(x, spec, back)


def replicate(x: Tensor) -> Tensor:
    """Returns `x` replicated on every device."""
    return lay(x, [None] * len(x.shape))


def batch_axis() -> str | None:
    """Returns the axis that shards the examples."""
    scope = current()
    if scope is None:
        return None
    return scope.batch


def _batch_spec(x: Tensor) -> Spec:
    return [batch_axis(), *[None] * (len(x.shape) - 1)]


def by_batch(x: Tensor) -> Tensor:
    """Returns `x` sharded by examples only."""
    return lay(x, _batch_spec(x))


def splits_space() -> bool:
    """Returns whether the mesh shards the height or width of images."""
    scope = current()
    return scope is not None and scope.placer is not None and any(scope.space)


def image_spec(shape: Sequence[int]) -> Spec:
    """Returns the spec of images (batch, height, width, channel), replicated in dims that the axes do not divide."""
    scope = current()
    assert scope is not None
    assert scope.placer is not None
    spec: list[str | None] = [scope.batch]
    for size, axis in zip(shape[1:3], scope.space, strict=True):
        if axis is not None and size % scope.placer.size(axis) != 0:
            axis = None
        spec.append(axis)
    return [*spec, None]


def as_flat(x: Tensor) -> Tensor:
    """Returns images ready to be flattened: at most the height is sharded.

    DTensor merges dims only if none but the first of them is sharded.
    """
    if not splits_space() or len(x.shape) != 4:
        return x
    spec = image_spec(x.shape)
    return lay(x, [*spec[:2], None, None], spec)


def whole_images(x: Tensor) -> Tensor:
    """Returns images sharded by examples only. A convolution or a pooling window needs them so."""
    current_spec = None
    if splits_space():
        current_spec = image_spec(x.shape)
    return lay(x, _batch_spec(x), current_spec)


def as_images(x: Tensor) -> Tensor:
    """Returns images sharded by examples only, sharded in space like the inputs.

    If the mesh does not shard space, this fixes the sharding by examples. Otherwise a sharding that a later layer asks
    for, such as that of a dense kernel's rows, would propagate back to the convolution or window, which does not
    support it.
    """
    if not splits_space():
        return by_batch(x)
    return lay(x, image_spec(x.shape), _batch_spec(x))


def as_rows(x: Tensor, kernel: Tensor) -> Tensor:
    """Returns a layer's input with its last dim sharded like its kernel's first, if a mesh axis shards that."""
    placer = _placer()
    if placer is None or len(x.shape) > 3:
        return x
    axis = placer.axis(kernel, 0)
    if axis is None:
        return x
    spec = [batch_axis(), axis]
    if len(x.shape) == 3:
        spec.insert(1, MATCH)
    return lay(x, spec)


def met_by(x_bthk: Tensor, kernel: Tensor, other: Tensor) -> Tensor:
    """Returns heads, replicated if another axis shards those that they meet.

    DTensor has no rule for a product of dims that two axes shard.
    """
    placer = _placer()
    if placer is None:
        return x_bthk
    axes = {placer.axis(kernel, 1), placer.axis(other, 1)} - {None}
    if len(axes) <= 1:
        return x_bthk
    return lay(x_bthk, [batch_axis(), MATCH, None, None])
