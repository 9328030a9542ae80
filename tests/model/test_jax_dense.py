"""A dense layer of few units in the form that a CPU computes fast is that layer: outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.jax_runs import answers

# Shape of the inputs, units, how a mesh of batch x model, 4 x 2, splits inputs and kernel.
CASES: list[tuple[list[int], int, list[str | None], list[str | None]]] = [
    ([64, 48], 10, [None], [None, None]),
    ([64, 48], 10, ["batch"], [None, None]),
    ([64, 48], 10, ["batch"], ["model", None]),
    ([64, 48], 10, ["batch"], [None, "model"]),
    ([64, 48], 10, ["batch"], ["batch", None]),
    ([64, 48], 16, ["batch"], ["batch", "model"]),
    ([64, 48], 1, ["batch"], [None, None]),
    ([8, 6, 32], 10, ["batch"], ["model", None]),
    ([8, 6, 32], 10, ["batch", "model"], [None, None]),
    ([64, 48], 17, ["batch"], [None, None]),
]
PROGRAM = r"""
import json, os, re, sys
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"], os.environ["KERAS_BACKEND"] = "16", "jax"
import jax, keras, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from runner.engine.jax.layers.adopted import Dense
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "model"))
place = lambda spec: NamedSharding(mesh, PartitionSpec(*spec))
rng, rows = np.random.default_rng(1), []
for shape, units, image, kernel in json.loads(sys.argv[1]):
    keras.utils.set_random_seed(1)
    stock = keras.layers.Dense(units, activation="tanh", bias_initializer="normal")
    own = Dense.from_config(stock.get_config())
    for layer in (stock, own):
        layer.build(shape)
    values = [np.asarray(v.value) for v in stock.trainable_variables]
    x, g = (rng.normal(size=size).astype(np.float32) for size in (shape, [*shape[:-1], units]))
    def found(layer, weights, x):
        y, back = jax.vjp(lambda weights, x: layer.stateless_call(weights, [], x)[0], weights, x)
        return [y, *jax.tree.leaves(back(g))]
    where = [place(kernel), place(kernel[1:])], place(image)
    placed = jax.device_put((values, x), where)
    program = jax.jit(lambda *a: found(own, *a)).lower(*placed).compile()
    pairs = list(zip(jax.jit(lambda *a: found(stock, *a))(values, x), program(*placed), strict=True))
    y = np.asarray(pairs[0][0])
    slopes, rows_of_x = (np.abs(g) * (1 - y * y)).reshape(-1, units), np.abs(x).reshape(-1, shape[-1])
    terms = [np.abs(y), rows_of_x.T @ slopes, slopes.sum(0), slopes @ np.abs(values[0]).T]  # a sum itself may cancel
    apart = [np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs]
    worst = [float(one / sizes.max()) for one, sizes in zip(apart, terms, strict=True)]
    one = jax.jit(lambda *a: found(own, *a)).lower(values, x).compile().as_text()
    dots = re.findall(r"= f32\[(\d+),(\d+)\]\{(\d),\d\}\S* dot\(", one)  # the dim that changes fastest is named first
    products = [[int(a), int(b)] if fastest == "1" else [int(b), int(a)] for a, b, fastest in dots]
    rows.append([[a.shape == b.shape for a, b in pairs], worst, products])
print(json.dumps(rows))
"""

pytestmark = pytest.mark.slow
rows = answers(PROGRAM, CASES)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_dense_layer_and_its_gradients_are_those_of_keras_on_any_mesh(rows: list[list[Any]], index: int) -> None:
    shapes, worst, _ = rows[index]
    assert shapes == [True] * 4  # outputs; gradients of kernel, bias and inputs
    assert max(worst) < 1e-6, "sums of at most 64 float32 products, added in another order"


# One unit's product is that of a matrix and a vector, which XLA writes as it likes.
@pytest.mark.parametrize("index", [index for index, (_, units, _, _) in enumerate(CASES) if units > 1])
def test_the_gradient_of_a_kernel_with_few_units_is_computed_transposed(rows: list[list[Any]], index: int) -> None:
    shape, units, _, _ = CASES[index]
    features = shape[-1]
    kernels = [size for size in rows[index][2] if sorted(size) == sorted([features, units])]
    assert kernels == [[units, features] if units <= 16 else [features, units]], "as it lies in memory"
