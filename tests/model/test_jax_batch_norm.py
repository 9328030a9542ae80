"""Batch normalization in the engine `jax` is that of Keras: outputs, moments, gradients; devices meet less often."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.jax_runs import answers

# Input, channel axis, scale, offset, mean of the input in units of its deviation.
CASES: list[tuple[list[int], int, bool, bool, float]] = [
    ([8, 5, 6, 3], -1, False, True, 0.5),
    ([8, 5, 6, 3], -1, True, True, 0.5),
    ([8, 5, 6, 3], 1, True, False, 0.5),
    ([16, 7], -1, False, False, 0.5),
    ([16, 7], 1, True, True, 30.0),
]
PROGRAM = r"""
import json, os, re, sys
os.environ["JAX_PLATFORMS"], os.environ["KERAS_BACKEND"] = "cpu", "jax"
import jax, jax.numpy as jnp, keras, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from runner.model import scope
from runner.engine.jax.layers.batch_norm import Parts
from runner.engine.jax.layers.adopted import BatchNormalization
jax.config.update("jax_num_cpu_devices", 4)
rng, rows = np.random.default_rng(1), []
mesh = Mesh(np.array(jax.devices()), ("batch",))
split, together = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (["batch"], []))
parts = Parts(4, lambda array: jax.lax.with_sharding_constraint(array, together))

def whole(kind, shape, axis, scale, center, x, g, weights, parts=None):
    layer = kind(axis=axis, scale=scale, center=center)
    layer.build(shape)
    held = [v.value for v in layer.non_trainable_variables]
    def loss(weights, x, g):
        with scope.enter(scope.Scope(0, parts=parts)):
            y, new = layer.stateless_call(weights, held, x, training=True)
        return jnp.sum(jnp.sin(y) * g), (y, new)  # its gradient is known after the output, as in a network
    grad = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    program = grad.lower(weights, *jax.device_put((x, g), split)).compile().as_text()
    return jax.tree.leaves(grad(weights, x, g)), len(re.findall(r" all-\w+\(", program))

for shape, axis, scale, center, mean in json.loads(sys.argv[1]):
    x, g = (rng.normal(size=shape).astype(np.float32) for _ in "xg")
    x += np.float32(mean)
    weights = [rng.normal(size=(shape[axis],)).astype(np.float32) for used in (scale, center) if used]
    expected, stock = whole(keras.layers.BatchNormalization, shape, axis, scale, center, x, g, weights)
    arguments = shape, axis, scale, center, x, g, weights
    for got, own in (whole(BatchNormalization, *arguments), whole(BatchNormalization, *arguments, parts)):
        worst = [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(expected, got, strict=True)]
        rows.append([[a.shape == b.shape for a, b in zip(expected, got)], worst, stock, own])
print(json.dumps(rows))
"""

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
rows = answers(PROGRAM, CASES)


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize("joined", [False, True])
def test_outputs_moments_and_gradients_are_those_of_keras(rows: list[list[Any]], index: int, joined: bool) -> None:
    shapes, worst, _, _ = rows[2 * index + joined]
    _, _, scale, center, mean = CASES[index]
    assert shapes == [True] * (4 + scale + center), "gradients of weights and input, output, mean and variance"
    assert max(worst) < 2e-6 * max(mean, 1.0), "rounding of x - mean grows with the mean"


def test_the_gradient_needs_fewer_collectives_than_the_one_that_jax_derives(rows: list[list[Any]]) -> None:
    assert {row[2] for row in rows} == {4}, "for the mean, for the variance, twice in the gradient"
    assert {row[3] for row in rows[::2]} == {3}, "once in the gradient"
    assert {row[3] for row in rows[1::2]} == {2}, "once for the moments of all parts"
