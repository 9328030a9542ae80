"""Values that are in memory until the backward pass, of small traced functions."""

import pytest

from tests.engine.jax_runs import answer

PROGRAM = """
import json, jax, jax.numpy as jnp
from runner.engine.jax import planned

def mlp(weights, x):
    up, down = weights
    hidden = jax.nn.gelu(x @ up, approximate=True)
    return jnp.sum((hidden @ down) ** 2), None

def checkpointed(weights, x):
    return jax.checkpoint(mlp)(weights, jnp.tanh(x @ jnp.ones((8, 8))))

def dropped(weights, x):
    up, down = weights
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (4, 32))
    return jnp.sum(jnp.where(kept, x @ up, 0.0) @ down), None

def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.bfloat16)

weights, x = (shape(8, 32), shape(32, 8)), shape(4, 8)
found = {}
for function in (mlp, checkpointed, dropped):
    arrays, _ = planned.saved_arrays(function, weights, x)
    found[function.__name__] = sorted(list(array.shape) for array in arrays)
    found[function.__name__ + "_dtypes"] = sorted(str(array.dtype) for array in arrays)
print(json.dumps(found))
"""


@pytest.mark.nightly
def test_xla_holds_products_and_their_operands_and_computes_the_rest_again() -> None:
    shapes = answer(PROGRAM)
    # The first product, the second product's operand, and the second product. GELU's powers and tanh are none of them.
    assert shapes["mlp"] == [[4, 8], [4, 32], [4, 32]]
    # Of what is checkpointed, its input.
    assert shapes["checkpointed"] == [[4, 8]]
    # A mask of one byte per number, and not its random bits; and the second product's operand.
    assert "uint32" not in shapes["dropped_dtypes"]
    assert "bool" in shapes["dropped_dtypes"]
