"""Arrays of a loss in chunks, moved from one mesh to another.

The forward pass of such a loss keeps three arrays, in whose shapes are the parts of the mesh: the gradients of the
tokens (C, P, S, N, D) and of the head (P, S, D, V), and the weights of the tokens (C, P, S, N). See
`runner.engine.jax.layers.chunked_loss` for the letters. All other arrays have whole shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runner.engine.base import LossShapes, LossSplit

Array = tuple[tuple[int, ...], str]


def moved(
    saved: Sequence[Array], losses: Sequence[LossShapes], examples: int, old: LossSplit, new: LossSplit
) -> list[Array] | None:
    """Returns the arrays that a forward pass keeps on another mesh; None if it is not clear which are the losses'.

    `saved` are those of the old mesh, `examples` a microbatch's B. A loss that one of the two meshes computes whole,
    the other one computes whole too.
    """
    counts = Counter(shape for shape, _ in saved)
    new_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for loss, old_chunks, new_chunks in zip(losses, old.chunks, new.chunks, strict=True):
        if old_chunks == 0:
            # Computed whole.
            continue
        old_shapes = _kept_shapes(loss, old_chunks, examples, old)
        if any(counts[shape] != 1 for shape in old_shapes) or not new_shapes.keys().isdisjoint(old_shapes):
            return None
        new_shapes |= dict(zip(old_shapes, _kept_shapes(loss, new_chunks, examples, new), strict=True))
    return [(new_shapes.get(shape, shape), dtype) for shape, dtype in saved]


def _kept_shapes(loss: LossShapes, chunks: int, examples: int, split: LossSplit) -> list[tuple[int, ...]]:
    """Returns the shapes of what the forward pass of a loss keeps."""
    tokens = (examples // split.examples) * (loss.tokens // split.sequence // chunks)
    return [
        (chunks, split.examples, split.sequence, tokens, loss.features),
        (split.examples, split.sequence, loss.features, loss.vocabulary),
        (chunks, split.examples, split.sequence, tokens),
    ]
