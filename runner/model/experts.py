"""A mixture of experts: feed-forwards of which each token uses a few.

Jiang et al., Mixtral of Experts (arXiv:2401.04088).

Every expert computes every token, and those that a token does not use have a weight of 0, as in KerasHub. The result
is exact: no expert has a capacity, and no token is dropped. The price is E / k times the products of the k chosen
experts. A sparse dispatch would sort the tokens by expert and multiply groups whose sizes only a run knows. TensorFlow
has no product of such groups, and on CPUs JAX's own (`jax.lax.ragged_dot`, JAX 0.10) multiplies all groups with a
mask. So a dispatch would save nothing there and be a second mechanism for GPUs and TPUs. The products here are those
that every engine, mesh and scan computes.

Legend of the shape suffixes: B batch, T tokens, D model width, E experts, F hidden units of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from runner.model.portable import Tensor


def layers(
    keras: ModuleType, name: str, *, dim: int, hidden: int, count: int, initial: Callable[[float], Any], scale: float
) -> dict[str, Any]:
    """Returns the router (D, E), and of all experts at once the gate and up (E, D, F), and down (E, F, D)."""
    dense = keras.layers.EinsumDense
    to_hidden = "btd,edf->btef"
    hidden_units = (None, count, hidden)
    return {
        "router": keras.layers.Dense(count, use_bias=False, kernel_initializer=initial(1.0), name=f"{name}.router"),
        "gate": dense(to_hidden, hidden_units, kernel_initializer=initial(1.0), name=f"{name}.gate"),
        "up": dense(to_hidden, hidden_units, kernel_initializer=initial(1.0), name=f"{name}.up"),
        # The sum over the experts is part of the product, so their outputs (B, T, E, D) are never in memory.
        "down": dense("btef,efd->btd", (None, dim), kernel_initializer=initial(scale), name=f"{name}.down"),
    }


class Routing(NamedTuple):
    """What a router decides, float32 at least.

    Attributes:
      weights: (B, T, E), of the experts' outputs: the chosen probabilities, divided by their sum, and 0 of the others.
      probabilities: (B, T, E).
      chosen: (B, T, E), 1 where the token uses the expert, else 0.
    """

    weights: Tensor
    probabilities: Tensor
    chosen: Tensor


def route(ops: Any, logits_bte: Tensor, per_token: int) -> Routing:
    """Returns which experts each token uses: the most probable ones.

    Of equal probabilities the first expert is chosen, as `top_k` does.
    """
    logits = logits_bte
    if "bfloat16" in str(logits_bte.dtype):
        logits = ops.cast(logits_bte, "float32")
    probabilities = ops.softmax(logits)
    dtype = probabilities.dtype
    count = int(logits_bte.shape[-1])
    # An expert is chosen if fewer than `per_token` others are before it. Comparisons are sharded as the
    # tokens are, and their results are the same in both flavors.
    this = ops.expand_dims(probabilities, -1)
    other = ops.expand_dims(probabilities, -2)
    is_earlier = ops.cast(ops.convert_to_tensor(np.tril(np.ones((count, count), np.float32), -1)), dtype)
    is_larger = ops.cast(ops.greater(other, this), dtype)
    is_equal = ops.cast(ops.equal(other, this), dtype)
    before = ops.sum(is_larger + is_equal * is_earlier, axis=-1)
    # Counts are whole numbers, so a half keeps every comparison clear of rounding.
    chosen = ops.cast(ops.less(before, per_token - 0.5), dtype)
    chosen_probabilities = probabilities * chosen
    weights = chosen_probabilities / ops.sum(chosen_probabilities, axis=-1, keepdims=True)
    return Routing(weights, probabilities, chosen)


def imbalance(ops: Any, routing: Routing, per_token: int) -> Tensor:
    """Returns the load-balancing loss of one router, a scalar: 1 if all experts are used alike, at most E.

    It is E times the sum over the experts of the share of choices and the mean probability (Fedus et al., Switch
    Transformers, arXiv:2101.03961, equation 4). Shares have no gradient. KerasHub has the same loss.
    """
    shares = ops.mean(routing.chosen, axis=(0, 1)) / per_token
    probabilities = ops.mean(routing.probabilities, axis=(0, 1))
    return int(routing.chosen.shape[-1]) * ops.sum(shares * probabilities, axis=-1)
