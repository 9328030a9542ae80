"""Cross-entropy of tokens over a vocabulary, which a mesh axis may split. Imports neither TensorFlow nor JAX.

Shapes: B examples, T tokens, D features, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from runner.task.namespace import Namespace

Tensor = Any  # an array of NumPy, TensorFlow or JAX
_SHORT = ("bfloat16", "float16")


def of_logits(ops: Namespace, logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each token's cross-entropy in nats, and 1 where the likeliest token is its label, else 0.

    Both come of sums and extremes over the vocabulary, which each device takes of its own part: a gather of a label's
    logit, or an argmax, would bring the parts together.

    Args:
      ops: the engine's.
      logits: (..., V), in any precision.
      label: int32 (...), from 0 to V - 1.
    """
    if logits.dtype.name in _SHORT:
        logits = ops.cast(logits, "float32")
    size = int(logits.shape[-1])
    number = np.arange(size, dtype=np.int32).reshape((1,) * len(label.shape) + (size,))
    is_label = ops.equal(ops.expand_dims(label, -1), number)
    top = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    away = logits - top
    chosen = ops.sum(ops.where(is_label, away, ops.zeros_like(away)), axis=-1)
    nats = ops.log(ops.sum(ops.exp(away), axis=-1)) - chosen
    # The first of the largest, as argmax has it.
    is_top = ops.greater_equal(ops.stop_gradient(away), 0.0)
    behind = ops.cast(ops.zeros_like(away), "int32") + size
    first = ops.min(ops.where(is_top, ops.zeros_like(behind) + number, behind), axis=-1)
    return nats, ops.cast(ops.equal(first, label), "float32")


def linear(
    ops: Namespace, hidden: Tensor, head: Tensor, bias: Tensor | None, label: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns what `of_logits` does of `hidden @ head + bias`, computed whole.

    Args:
      ops: the engine's.
      hidden: (B, T, D).
      head: (D, V).
      bias: (V,); None: none.
      label: int32 (B, T).
      weight: float32 (B, T), what the gradients of the nats are multiples of; not needed here.
    """
    del weight
    logits = ops.matmul(hidden, head)
    return of_logits(ops, logits if bias is None else logits + bias, label)
