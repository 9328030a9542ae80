"""Which calls of attention may take cuDNN's kernel, of which JAX splits no tokens, and heads only alike."""

from typing import Any

import pytest

from tests.engine.jax_runs import answers

# mesh axes; whether tokens are split; heads of queries and keys; what the call says -> what is passed on
CASES: dict[str, tuple[dict[str, int], bool, int, int, bool | None, bool | None]] = {
    "examples": ({"batch": 8}, False, 4, 1, None, None),
    "heads": ({"batch": 2, "model": 4}, False, 8, 4, None, None),
    "fewer key heads": ({"batch": 2, "model": 4}, False, 8, 2, None, False),
    "an axis of one": ({"batch": 8, "model": 1}, False, 8, 2, None, None),
    "tokens": ({"batch": 4, "sequence": 2}, True, 8, 8, None, False),
    "said by the caller": ({"batch": 2, "model": 4}, False, 8, 2, True, True),
}
PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
import jax.numpy as jnp, keras, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from runner.engine.jax import private
from runner.engine.jax.layers.fused_attention import fused_where_alike

found = {}
for name, (axes, splits, heads, groups, said, _) in json.loads(sys.argv[1]).items():
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
    seen = []

    def noted(plain):
        def attention(*arrays, **told):
            seen.append(told["flash_attention"])
            return plain(*arrays, **(told | {"flash_attention": False}))
        return attention

    q, k = (jnp.ones((2, 3, count, 4)) for count in (heads, groups))
    with private.attention_replaced(noted):
        with fused_where_alike(NamedSharding(mesh, PartitionSpec("batch")), splits_tokens=splits):
            keras.ops.dot_product_attention(q, k, k, flash_attention=said)
    found[name] = seen

# Heads are split by the queries' kernel alone; the keys' is split by the width of a head, and the values' not at all.
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("batch", "model"))
lies = lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))
seen = []

def looked_at(plain):
    def attention(*arrays, **told):
        for each in arrays:
            jax.debug.inspect_array_sharding(each, callback=seen.append)
        return plain(*arrays, **(told | {"flash_attention": False}))
    return attention

def step(x, q, k, v):
    with private.attention_replaced(looked_at):
        with fused_where_alike(lies("batch"), splits_tokens=False, heads_axis="model"):
            heads = [jnp.einsum("btd,dhk->bthk", x, kernel) for kernel in (q, k, v)]
            return keras.ops.dot_product_attention(*heads)

placed = [lies("batch"), lies(None, "model"), lies("batch", None, "model"), lies("batch")]
shapes = [(2, 3, 8), (8, 8, 4), (8, 8, 4), (8, 8, 4)]
arrays = [jnp.ones(shape, jnp.bfloat16) for shape in shapes]
jax.jit(step, in_shardings=placed).lower(*arrays).compile()
wanted = lies("batch", None, "model")
found["apart"] = [each.is_equivalent_to(wanted, 4) for each in seen]
print(json.dumps(found))
"""
found = answers(PROGRAM, CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_fused_kernel_is_left_out_where_a_mesh_splits_what_it_can_not(found: Any, name: str) -> None:
    assert found[name] == [CASES[name][-1]]


def test_queries_keys_and_values_lie_alike_however_their_kernels_do(found: Any) -> None:
    assert found["apart"] == [True, True, True]
