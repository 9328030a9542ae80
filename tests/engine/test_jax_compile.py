"""How the engine `jax` runs a call's steps: in a loop, but for convolutions that a loop on CPUs makes slow."""

from typing import Any

import pytest

from tests.engine.jax_runs import answer

# Layers after an image (2, 12, 12, 6), as Keras makes them and as the engine does on CPUs.
LAYERS = {
    "Dense(5)": (0, 0),
    "Conv2D(5, 3, padding='same')": (2, 0),
    "Conv2D(5, 3, strides=2, padding='same')": (2, 0),
    "Conv2D(5, 1, strides=2)": (2, 0),
    "Conv2D(6, 3, groups=2)": (3, 3),
    "Conv2D(5, 3, dilation_rate=2)": (2, 2),
    "DepthwiseConv2D(3)": (3, 3),
    "Conv2DTranspose(5, 2, strides=2)": (2, 2),
}
MESHES: list[tuple[dict[str, int], str, bool]] = [
    ({"batch": 4}, "auto", True),
    ({"batch": 2, "height": 2}, "auto", False),
    ({"batch": 2, "height": 2}, "device", True),
    ({"batch": 4}, "host", False),
]
PROGRAM = r"""
import json, os, sys
os.environ["JAX_PLATFORMS"], os.environ["KERAS_BACKEND"] = "cpu", "jax"
from runner.engine import make_engine, registry
from tests.configs import with_keys
from tests.engine import cases
layers, meshes = map(json.loads, sys.argv[1:])

modes = []
for axes, loop, _ in meshes:
    config = cases.config(axes, None, "runner.model.convnet.build", dropout=0.5)
    if "height" in axes:
        config.layout.inputs["image"] = ["batch", "height", None, None]
    config = with_keys(config, {"engine.name": "jax", "engine.loop": loop})
    registry.prepare(config)
    engine = make_engine(config, cases.data(), 1, planning=True)
    engine.build()
    modes.append(engine._loops)

import jax, keras, numpy as np
from runner.engine.jax.compile import slow_in_loops
from runner.engine.jax.layers.on_cpus import adopt

def slow(text, adopts):
    layer = eval("keras.layers." + text)
    layer.build((2, 12, 12, 6))
    if adopts:
        adopt(keras.Sequential([layer]))
    def loss(weights, x):
        return jax.jit(lambda x: layer.stateless_call(weights, [], x)[0].sum())(x)
    weights = [variable.value for variable in layer.trainable_variables]
    return slow_in_loops(jax.make_jaxpr(jax.grad(loss, (0, 1)))(weights, np.ones((2, 12, 12, 6), np.float32)).jaxpr)

print(json.dumps([modes, [[slow(text, adopts) for adopts in (False, True)] for text in layers]]))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> list[list[Any]]:
    got: list[list[Any]] = answer(PROGRAM, list(LAYERS), MESHES)
    return got


@pytest.mark.parametrize("index", range(len(LAYERS)))
def test_convolutions_that_the_compiler_must_change_are_counted(found: list[list[Any]], index: int) -> None:
    layer, expected = list(LAYERS.items())[index]
    assert tuple(found[1][index]) == expected, layer


def test_a_convnet_runs_in_a_loop_where_no_image_is_split_and_as_asked(found: list[list[Any]]) -> None:
    assert found[0] == [loops for _, _, loops in MESHES]


def test_a_product_that_triton_has_no_tiling_for_and_an_unknown_option_are_compiled_without_it() -> None:
    code = """
import json
import jax
from runner.engine.jax.compile import TO_READ, compiled
class Lowered:
    def compile(self, compiler_options=None):
        options = dict(compiler_options or {})
        if "xla_cpu_use_fusion_emitters" in options:  # jaxlib 0.12
            raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: No such compile option: 'xla_cpu_use_fusion_emitters'")
        if "xla_gpu_enable_triton_gemm" not in options:
            raise jax.errors.JaxRuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo")
        return options
options = compiled(Lowered(), TO_READ)
known = {key: value for key, value in TO_READ.items() if key != "xla_cpu_use_fusion_emitters"}
print(json.dumps(options == {**known, "xla_gpu_enable_triton_gemm": False}))
"""
    assert answer(code) is True
