"""The weights that a router gives to experts, and its loss, in NumPy."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from runner.model.experts import imbalance, route


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


OPS = SimpleNamespace(
    softmax=softmax,
    cast=lambda x, dtype: x.astype(dtype),
    convert_to_tensor=np.asarray,
    expand_dims=np.expand_dims,
    greater=np.greater,
    equal=np.equal,
    less=np.less,
    sum=np.sum,
    mean=np.mean,
)


def test_the_most_probable_experts_share_the_weight_by_their_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 5, 6))
    for per_token in range(1, 7):
        weights = route(OPS, logits, per_token).weights
        for row, own in zip(logits.reshape(-1, 6), weights.reshape(-1, 6), strict=True):
            chosen = np.argsort(-row)[:per_token]
            expected = np.zeros(6)
            expected[chosen] = softmax(row[chosen])
            np.testing.assert_allclose(own, expected, rtol=1e-12)


def test_of_equal_logits_the_first_experts_are_chosen() -> None:
    # In bfloat16, whose mantissa has 8 bits, logits are often equal.
    weights = route(OPS, np.array([[[1.0, 2.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]]), 2).weights
    np.testing.assert_allclose(weights[0, 0], [*softmax(np.array([1.0, 2.0])), 0.0, 0.0], rtol=1e-12)
    np.testing.assert_array_equal(weights[1, 0], [0.5, 0.5, 0.0, 0.0])


def test_the_loss_of_a_router_is_one_if_all_experts_are_used_alike_and_grows_to_their_number() -> None:
    even = np.array([[[9.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 9.0]]])
    np.testing.assert_allclose(imbalance(OPS, route(OPS, even, 2), 2), 1.0, rtol=1e-12)
    one_sided = np.array([[[99.0, 0.0, 0.0, 0.0], [99.0, 0.0, 0.0, 0.0]]])
    np.testing.assert_allclose(imbalance(OPS, route(OPS, one_sided, 1), 1), 4.0, rtol=1e-12)
