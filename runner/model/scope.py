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
      step: scalar int32 tensor, number of earlier microbatches; None if nothing random is drawn, as in an evaluation.
      placer: the placer of the mesh; None on one plain device, and with JAX, whose compiler reshards by itself.
      batch: axis that shards the examples.
    """

    seed: int
    step: Tensor = None
    placer: Placer | None = None
    batch: str | None = None


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


def lay(x: Tensor, spec: Spec) -> Tensor:
    """Returns `x` sharded by a spec, on a mesh; without a placer `x` itself."""
    placer = _placer()
    if placer is None:
        return x
    return placer.lay(x, spec)


def replicate(x: Tensor) -> Tensor:
    """Returns `x` replicated on every device."""
    return lay(x, [None] * len(x.shape))


def batch_axis() -> str | None:
    """Returns the axis that shards the examples."""
    scope = current()
    if scope is None:
        return None
    return scope.batch


def by_batch(x: Tensor) -> Tensor:
    """Returns `x` sharded by examples only."""
    return lay(x, [batch_axis(), *[None] * (len(x.shape) - 1)])


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
