"""The gradients of a loss in chunks are those of the whole, whatever the sign of the weights."""

from typing import Any

import pytest

from tests.engine.jax_runs import answers

SIGNS = {
    "positive": [1.0, 1.0],
    "negative": [-1.0, -0.5],
    "mixed": [2.0, -1.0],
    "padded": [-1.0, 0.0],
    "none": [0.0, 0.0],
    "tiny": [1.0, 1e-37],  # of which a factor is 0 in float32
}
PROGRAM = """
import json, re, sys
import jax, jax.numpy as jnp, numpy as np
from runner.engine.jax.layers.chunked_loss import WHOLE, TokenParts, chunk_count, chunked
from runner import arrays

B, T, D, V, SHARE = 2, 4, 3, 5, 1e-3
ops, found = arrays.of(jnp), {}
for name, signs in json.loads(sys.argv[1]).items():
    rng = np.random.default_rng(0)
    hidden, head = jnp.asarray(rng.normal(size=(B, T, D))), jnp.asarray(rng.normal(size=(D, V)))
    label = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
    weight = jnp.asarray(np.outer(signs, rng.uniform(0.5, 1.0, T)), jnp.float32)

    def whole(hidden, head):
        return jnp.sum(arrays.token_losses(ops, hidden @ head, label)[0] * weight) * SHARE

    def parts(hidden, head):
        nats, _ = chunked(ops, WHOLE, hidden, head, label, weight, most_bytes=B * V * 4)
        return jnp.sum(nats * weight) * SHARE

    pairs = zip(jax.grad(whole, (0, 1))(hidden, head), jax.grad(parts, (0, 1))(hidden, head))
    found[name] = [[float(np.abs(a - b).max()), float(np.abs(a).max())] for a, b in pairs]

hidden = jnp.asarray(rng.normal(size=(B, T, D)), jnp.bfloat16)
head = jnp.asarray(9 * rng.normal(size=(D, V)), jnp.bfloat16)
exact = arrays.token_losses(ops, hidden.astype("float32") @ head.astype("float32"), label)[0]
for name, parts in {"one": WHOLE, "two": TokenParts(2, 1, lambda array, _: array)}.items():
    nats, _ = chunked(ops, parts, hidden, head, label, weight, 1 << 28)
    found[f"bfloat16 {name}"] = float(abs(nats - exact).max())
    found[f"types {name}"] = [each.dtype.name for each in jax.grad(
        lambda *of: jnp.sum(chunked(ops, parts, *of, label, weight, 1 << 28)[0] * weight), (0, 1))(hidden, head)]

def counts(*parts, examples):
    # of 8,192 tokens and 131,072 logits, at 256 MiB
    return chunk_count(TokenParts(*parts), examples, 8192, 131072, 1 << 28)

same = lambda array, _: array
found["counts"] = {
    "one": counts(1, 1, same, examples=2),
    "eight of as many each": counts(8, 1, same, examples=16),
    "micro-batch": counts(8, 1, same, examples=8),
    "sequence": counts(8, 4, same, examples=16),
    "vocabulary": counts(8, 1, same, 8, examples=16),
    "256 devices": counts(256, 1, same, examples=1024),
}
scanned = jax.make_jaxpr(lambda *of: chunked(ops, TokenParts(2, 2, same), *of, label, weight, 2 * V * 4 // 2))(
    hidden, head)
found["turns"] = sorted({int(turns) for turns in re.findall(r"length=(\\d+)", str(scanned))})
print(json.dumps(found))
"""
found = answers(PROGRAM, SIGNS)


@pytest.mark.parametrize("signs", SIGNS)
def test_gradients_in_chunks_are_those_of_the_whole(found: Any, signs: str) -> None:
    for apart, largest in found[signs]:
        assert apart <= 1e-5 * largest  # float32, summed in another order
        assert (largest > 0) == (signs != "none")


@pytest.mark.parametrize("parts", ["one", "two"])
def test_losses_of_bfloat16_are_float32_however_the_tokens_are_split(found: Any, parts: str) -> None:
    assert found[f"bfloat16 {parts}"] < 1e-4, "a logit of 30 rounded to bfloat16 is off by 0.06"
    assert found[f"types {parts}"] == ["bfloat16", "bfloat16"]


def test_the_number_of_chunks_is_that_of_one_devices_logits(found: Any) -> None:
    assert found["counts"] == {
        "one": 32,  # 2 x 8,192 x 131,072 x 4 bytes are 8 GiB
        "eight of as many each": 32,
        "micro-batch": 16,
        "sequence": 8,
        "vocabulary": 4,
        "256 devices": 64,
    }


def test_a_sequence_in_parts_is_cut_within_each(found: Any) -> None:
    assert found["turns"] == [2], "of 2 tokens and an example a device one token is all that fits a chunk"
