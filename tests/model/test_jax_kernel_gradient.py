"""Kernel gradients of convolutions are those of one device where a mesh axis is left over from the images."""

import pytest

from tests.engine.jax_runs import answer
from tests.nightly import nightly_except

LAYERS = {
    "plain": "Conv2D(8, 3, padding='same')",
    "strides": "Conv2D(8, 4, strides=2)",
    "patches": "Conv2D(8, 4, strides=4)",
    "dilation": "Conv2D(8, 3, dilation_rate=2, padding='same')",
    "groups": "Conv2D(8, 3, groups=2, padding='same')",
    "depthwise": "DepthwiseConv2D(3, padding='same')",
    "separable": "SeparableConv2D(8, 3, padding='same')",
    "transposed": "Conv2DTranspose(8, 3, strides=2, padding='same')",
    "by another name": "ByAnotherName()",  # not by Keras's operations, nor by the name in `jax.lax`
}
SPECS = [["batch"], ["batch", "height"], ["batch", None, "width"], ["batch", "height", "width"], [None, "height"]]
PROGRAM = r"""
import json, os, sys
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"], os.environ["KERAS_BACKEND"] = "16", "jax"
import jax, keras, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from runner.engine.jax.layers.gradients import exact_gradients, spread_over
layers, specs, batch = map(json.loads, sys.argv[1:])
same = jax.lax.conv_general_dilated
class ByAnotherName(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(3, 3, 2, 8), initializer="glorot_uniform", name="kernel")
    def call(self, x):
        w, form = keras.ops.convert_to_tensor(self.kernel), ("NHWC", "HWIO", "NHWC")
        grouped = jax.jit(lambda x, w: same(x, w, (1, 1), "SAME", dimension_numbers=form, feature_group_count=2))
        return jax.checkpoint(grouped)(x, w)
keras.layers.ByAnotherName = ByAnotherName
mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("batch", "height", "width"))
x = np.random.default_rng(0).normal(size=(batch, 16, 16, 4)).astype(np.float32)
found = {}
for name, text in layers.items():
    layer = eval("keras.layers." + text)
    layer.build(x.shape)
    weights = [np.asarray(v.value) for v in layer.trainable_variables]
    def loss(weights, x):
        y, _ = layer.stateless_call(weights, [], x)
        return jax.numpy.sum(jax.numpy.sin(y) * y)
    gradients = jax.grad(loss, (0, 1))
    expected = jax.tree.leaves(jax.jit(gradients)(weights, x))
    def exact(weights, x):
        with exact_gradients(spread_over(mesh)):
            return gradients(weights, x)
    for spec in specs:
        whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(*spec))
        step = jax.jit(exact, in_shardings=(whole, split), out_shardings=(whole, split))
        got = jax.tree.leaves(step(jax.device_put(weights, whole), jax.device_put(x, split)))
        worst = [float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(b).max()) for a, b in zip(got, expected)]
        found[f"{name} {spec}"] = max(worst)
print(json.dumps(found))
"""


BRIEF = {"strides": LAYERS["strides"]}


# 8 devices divide the one batch; each keeps the whole of the other.
@pytest.mark.slow
@pytest.mark.parametrize(("layers", "batch"), nightly_except([(BRIEF, 16)], [(BRIEF, 16), (LAYERS, 16), (LAYERS, 12)]))
def test_every_kind_of_convolution_has_the_gradients_of_one_device(layers: dict[str, str], batch: int) -> None:
    found = answer(PROGRAM, layers, SPECS, batch)
    assert len(found) == len(layers) * len(SPECS)
    # Sums of some 3,000 float32 products in another order; what XLA makes of it by itself is 1 to 3 away.
    assert {name: worst for name, worst in found.items() if worst > 2e-5} == {}
