"""What a CPU computes fast is what JAX and Keras compute: convolutions and batch normalization, with gradients."""

from typing import Any

import pytest

from tests.engine.jax_runs import answers

# Image, kernel, strides, padding: each form, sizes that a stride does not divide, edges that no step reaches.
CASES: list[tuple[list[int], list[int], list[int], str]] = [
    ([4, 9, 8, 1], [3, 3, 1, 5], [1, 1], "SAME"),
    ([4, 9, 8, 3], [3, 2, 3, 5], [1, 1], "VALID"),
    ([4, 9, 8, 6], [3, 3, 6, 5], [1, 1], "SAME"),
    ([4, 14, 14, 6], [6, 6, 6, 5], [2, 2], "VALID"),
    ([4, 12, 12, 6], [6, 6, 6, 5], [2, 2], "SAME"),
    ([4, 13, 15, 6], [4, 2, 6, 5], [2, 2], "SAME"),
    ([4, 13, 15, 6], [4, 4, 6, 5], [2, 2], "VALID"),
    ([4, 11, 11, 2], [3, 3, 2, 5], [3, 3], "VALID"),
    ([4, 11, 11, 2], [4, 3, 2, 5], [2, 3], "SAME"),
    ([4, 12, 12, 2], [3, 3, 2, 5], [2, 2], "SAME"),
    ([4, 12, 12, 2], [1, 1, 2, 5], [2, 2], "SAME"),
    ([4, 12, 13, 2], [3, 3, 2, 5], [2, 2], "VALID"),
    ([4, 14, 13, 2], [3, 2, 2, 5], [4, 3], "VALID"),
]
PROGRAM = r"""
import json, os, re, sys
os.environ["JAX_PLATFORMS"], os.environ["KERAS_BACKEND"] = "cpu", "jax"
import jax, keras, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from runner.engine.jax.layers.on_cpus import adopt, convolution
jax.config.update("jax_num_cpu_devices", 2)
rng, rows = np.random.default_rng(1), []
for image, kernel, strides, padding in json.loads(sys.argv[1]):
    def plain(x, w):
        form = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=form)
    own = lambda x, w: convolution(x, w, tuple(strides), padding)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in (image, kernel))
    (expected, back), (got, own_back) = jax.vjp(plain, x, w), jax.vjp(own, x, w)
    g = rng.normal(size=expected.shape).astype(np.float32)
    pairs = [(expected, got), *zip(back(g), own_back(g))]
    program = jax.jit(lambda x, w, g: jax.vjp(own, x, w)[1](g)).lower(x, w, g).as_text()
    worst = [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs]
    spread = bool(re.search(r"lhs_dilate = \[(?!1, 1\])", program))
    rows.append([[a.shape == b.shape for a, b in pairs], worst, spread])

x, g = (rng.normal(5, size=(8, 3, 3, 4)).astype(np.float32) for _ in range(2))
split = NamedSharding(jax.make_mesh((2,), ("batch",)), PartitionSpec("batch"))
whole = NamedSharding(split.mesh, PartitionSpec())
def normalized(layer):
    layer.build(x.shape)
    adopt(keras.Sequential([layer]))
    trained, kept = ([variable.value for variable in each] for each in (layer.weights[:2], layer.weights[2:]))
    def loss(trained, x):
        y, new = layer.stateless_call(trained, kept, x, training=True)
        return (y * g).sum(), new
    gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)
    step = jax.jit(gradients, in_shardings=(whole, split))
    second = jax.jvp(lambda x: gradients(trained, x)[1], (x,), (g,))
    return (step(trained, x), second), step.lower(trained, x).compile().as_text().count(" all-reduce(")
class Stock(keras.layers.BatchNormalization):
    "Is not adopted."
(expected, count), (got, own_count) = normalized(Stock()), normalized(keras.layers.BatchNormalization())
worst = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / np.abs(a).max()), expected, got)
print(json.dumps([rows, [count - own_count, *(max(jax.tree.leaves(each)) for each in worst)]]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
found = answers(PROGRAM, CASES)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_convolution_and_its_gradients_are_those_of_jax(found: list[Any], index: int) -> None:
    shapes, worst, _ = found[0][index]
    assert shapes == [True] * 3
    assert max(worst) < 2e-6, "sums of at most 3,000 float32 products, added in another order"


def test_an_image_is_dilated_only_if_the_strides_do_not_divide_the_kernel(found: list[Any]) -> None:
    spread = [any(k % s for k, s in zip(kernel, strides, strict=False)) for _, kernel, strides, _ in CASES]
    assert [row[2] for row in found[0]] == spread
    assert 0 < sum(spread) < len(CASES)


def test_batch_normalization_is_that_of_keras_with_a_collective_less(found: list[Any]) -> None:
    saved, worst, worst_of_second = found[1]
    assert saved == 1
    assert worst < 1e-6, "float32 sums of 72 pixels, in another order"
    assert worst_of_second < 1e-5, "differences of such sums"
