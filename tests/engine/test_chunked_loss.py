"""The gradients of a loss in chunks are those of the whole, whatever the sign of the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runner.engine.jax.layers.chunked_loss import WHOLE, chunked
from runner.task import namespace, token_losses

B, T, D, V = 2, 4, 3, 5
SIGNS = {
    "positive": [1.0, 1.0],
    "negative": [-1.0, -0.5],
    "mixed": [2.0, -1.0],
    "padded": [-1.0, 0.0],
    "none": [0.0, 0.0],
}


@pytest.mark.parametrize("signs", SIGNS)
def test_gradients_in_chunks_are_those_of_the_whole(signs: str) -> None:
    rng, ops = np.random.default_rng(0), namespace.of(jnp)
    hidden, head = jnp.asarray(rng.normal(size=(B, T, D))), jnp.asarray(rng.normal(size=(D, V)))
    label = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
    weight = jnp.asarray(np.outer(SIGNS[signs], rng.uniform(0.5, 1.0, T)), jnp.float32)

    def whole(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return jnp.sum(token_losses.linear(ops, hidden, head, None, label, weight)[0] * weight)

    def parts(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return jnp.sum(chunked(ops, WHOLE, hidden, head, None, label, weight, most_bytes=B * V * 4)[0] * weight)

    for wanted, found in zip(
        jax.grad(whole, (0, 1))(hidden, head), jax.grad(parts, (0, 1))(hidden, head), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)  # float32, summed in another order
