"""The private interfaces of JAX and Keras 3 that the engine leans on are there, in the versions that are installed."""

from __future__ import annotations

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
except ImportError as error:
    found["import"] = str(error)
    print(json.dumps(found))
    raise SystemExit

def devices():
    before = private.devices_are_made()
    jax.devices()
    return [before, private.devices_are_made()]

def functional():
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    class Own(keras.Model):
        pass
    layers = [model, keras.Sequential(), Own(), keras.layers.Dense(1)]
    return [private.is_functional(layer) for layer in layers]

def names():
    made = []
    for _ in range(2):
        private.reset_layer_names()
        made.append(keras.layers.Dense(1).name)
    return made

def layers():
    inner = keras.Sequential([keras.layers.Dense(2, name="inner")])
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1, name="outer")])
    return sorted(layer.name for layer in private.all_layers(model) if isinstance(layer, keras.layers.Dense))

def calls():
    layer, seen = keras.layers.Dense(2), []
    layer.build((1, 3))
    def make(layer, call):
        def wrapped(x):
            seen.append(layer.name)
            return call(x)
        return wrapped
    with private.calls_replaced([layer], make):
        layer(np.ones((1, 3), np.float32))
    layer(np.ones((1, 3), np.float32))
    return len(seen)

def convolution():
    seen, plain = [], lax.conv_general_dilated
    def make(function):
        def wrapped(*args, **options):
            seen.append(1)
            return function(*args, **options)
        return wrapped
    layer = keras.layers.Conv2D(2, 1)
    layer.build((1, 3, 3, 1))
    with private.convolution_replaced(make):
        layer(np.ones((1, 3, 3, 1), np.float32))
    return [len(seen), lax.conv_general_dilated is plain]

def bookkeeping():
    layer = keras.layers.Dense(2)
    layer.build((1, 3))
    return sorted({"_layers", "_trainable_variables", "_tracker"} & set(vars(layer)))

for name, question in (("devices", devices), ("functional", functional), ("names", names), ("layers", layers),
                       ("calls", calls), ("convolution", convolution), ("bookkeeping", bookkeeping)):
    ask(name, question)
print(json.dumps(found))
"""
EXPECTED: dict[str, Any] = {
    "devices": [False, True],
    "functional": [True, True, False, False],
    "names": ["dense", "dense"],
    "layers": ["inner", "outer"],
    "calls": 1,
    "convolution": [1, True],
    "bookkeeping": ["_layers", "_tracker", "_trainable_variables"],
}

found = answers(PROGRAM)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_private_interface_is_as_the_engine_needs_it(found: dict[str, Any], name: str) -> None:
    written = "runner/engine/jax/private.py was written against jax 0.10.2 and keras 3.15.1"
    assert "import" not in found, f"{found['versions']}: {found['import']}; {written}"
    assert found[name] == EXPECTED[name], f"{found['versions']} has another {name}; {written}"
