"""Private interfaces of JAX and Keras 3 without which a result would be wrong, and no other test would say why."""

from typing import Any

import pytest

from tests.engine.jax_runs import answers

PROGRAM = r"""
import json, os
os.environ["JAX_PLATFORMS"], os.environ["KERAS_BACKEND"] = "cpu", "jax"
import jax, keras, numpy as np
from jax import lax

found = {"versions": f"jax {jax.__version__}, keras {keras.__version__}"}

def ask(name, question):
    try:
        found[name] = question()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"

try:
    from runner.engine.jax import private
    from runner.model.hub import private as hub_private
except ImportError as error:
    found["import"] = str(error)
    print(json.dumps(found))
    raise SystemExit

def operations():
    seen = []
    def noted(name):
        def make(plain):
            def wrapped(*arrays, **told):
                seen.append([name, len(arrays), sorted(told)[-1]])
                return plain(*arrays, **told)
            return wrapped
        return make
    table, attention = keras.layers.Embedding(4, 8), keras.layers.MultiHeadAttention(2, 4)
    def call():
        x = table(np.ones((1, 3), np.int32))
        attention(x, x)
    call()  # built
    with private.take_replaced(noted("take")), private.attention_replaced(noted("attention")):
        call()
    call()
    return seen

def convolution():
    x, w, seen = np.ones((2, 5, 5, 4), np.float32), np.ones((3, 3, 4, 4), np.float32), []
    def one(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()
    def turned(x, w):
        return lax.conv_transpose(x, w, (2, 2), "SAME").sum()
    def prepare(images, gradient, numbers):
        seen.append([list(images.shape), numbers.lhs_spec[0]])
        return images * 2, gradient
    plain = [jax.grad(each, (0, 1))(x, w) for each in (one, turned)]
    with private.kernel_gradients_of(prepare):
        other = [jax.grad(each, (0, 1))(x, w) for each in (one, turned)]
    after = jax.grad(one, 1)(x, w)
    times = [[float((b / a).mean()) for a, b in zip(*pair)] for pair in zip(plain, other)]
    return [seen, times, bool((after == plain[0][1]).all())]

def forgotten():
    class Own(keras.layers.Layer):
        def call(self, x):
            self.add_loss(x[0, 0])
            return x
    layer = Own()
    model = keras.Sequential([keras.Input((2,)), layer])
    model.stateless_call([], [], np.ones((1, 2), np.float32), return_losses=True)
    before = len(layer._loss_ids)
    private.forget_added_losses(model)
    return [before, len(layer._loss_ids)]

def stored():
    import tempfile
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="only")])
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(f"{folder}/model.weights.h5")
        kernel = model.layers[0].kernel
        before = np.asarray(kernel)
        kernel.assign(before + 1)
        with hub_private.recorded_loads() as noted:
            model.load_weights(f"{folder}/model.weights.h5")
        part = noted[id(kernel)].read((slice(1, 3), slice(0, 1)))
        kept = bool((np.asarray(kernel) == before + 1).all())
        model.load_weights(f"{folder}/model.weights.h5")
        return [kept, bool((part == before[1:3, :1]).all()), bool((np.asarray(kernel) == before).all())]

def saving():
    import sys, tempfile
    from keras.src.utils import module_utils
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with tempfile.TemporaryDirectory() as folder, private.tensorflow_unimported():
        model.save(f"{folder}/model.keras")
    return ["tensorflow" in sys.modules, module_utils.tensorflow._available]

def giver():
    layer = keras.layers.Dense(2)
    return hub_private.producer(layer(keras.Input((3,)))) is layer

def stablehlo():
    exported = jax.export.export(jax.jit(lambda x: x + 1))
    with private.readable_by_tensorflow():
        old = exported(np.ones(2)).mlir_module_serialized
    return b"StableHLO_v1.15.0" in old

for question in (convolution, stored, giver, operations, saving, forgotten, stablehlo):
    ask(question.__name__, question)
print(json.dumps(found))
"""
EXPECTED: dict[str, Any] = {
    "stored": [True, True, True],
    "saving": [False, None],  # Keras has not asked for TensorFlow, and will when it is next used
    "giver": True,
    "stablehlo": True,
    "operations": [["take", 2, "axis"], ["attention", 3, "scale"]],
    "convolution": [[[[2, 5, 5, 4], 0]] * 2, [[1.0, 2.0]] * 2, True],  # the kernel's gradient alone is twice as large
    "forgotten": [1, 0],
}

found = answers(PROGRAM)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_private_interface_is_as_the_engine_needs_it(found: dict[str, Any], name: str) -> None:
    written = "runner/engine/jax/private.py was written against jax 0.10.2 and keras 3.15.1"
    assert "import" not in found, f"{found['versions']}: {found['import']}; {written}"
    assert found[name] == EXPECTED[name], f"{found['versions']} has another {name}; {written}"
