"""Networks of several inputs: what they make of each."""

from typing import Any

import numpy as np
import pytest

from tests import forks

pytestmark = pytest.mark.nightly

SCRIPT = """
import importlib, json, sys
import numpy as np
from runner.data.base import ArraySpec
keras = importlib.import_module(sys.argv[1])
image = ArraySpec((8, 8, 1), "float32", ("height", "width", "channel"))
inputs = {
    "image": image, "vector": ArraySpec((3,), "float32"), "age": ArraySpec((), "int32"),
    "price": ArraySpec((), "float32"),
    "town": ArraySpec((), "int32", (), ("Bern", "Ulm", "Wien")), "tags": ArraySpec((2,), "int64", (), ("a", "b")),
}
rng = np.random.default_rng(0)
arrays = {
    "image": rng.random((2, 8, 8, 1)).astype("float32"), "vector": rng.random((2, 3)).astype("float32"),
    "age": np.array([7, 40], "int32"), "price": np.array([1.5, -2.0], "float32"), "town": np.array([2, 0], "int32"),
    "tags": np.array([[0, 1], [1, 1]], "int64"),
}
found = {}
def shapes(model):
    return [list(w.shape) for w in model.weights if "seed" not in w.name]
mlps = ["mlp.sequential", "mlp.functional", "mlp.subclassed", "mlp.explicit"]
for name in (*mlps, "convnet.build", "resnet.build", "vit.build"):
    module, function = name.split(".")
    build = getattr(importlib.import_module(f"runner.model.{module}"), function)
    options = {"layouts": {}} if function == "explicit" else {"patch": 4} if module == "vit" else {}
    model = build(keras=keras, inputs=inputs, num_classes=5, **options)
    outputs = np.asarray(model(arrays))
    found[name] = [list(outputs.shape), shapes(model)]
mlp = importlib.import_module("runner.model.mlp")
model = mlp.functional(keras=keras, inputs=inputs, num_classes=5)
vector = keras.Model(model.inputs if sys.argv[1] == "tf_keras" else model.input, model.get_layer("joined").output)
found["vector"] = np.asarray(vector(arrays)).tolist()
found["refused"] = []
for module, names in (("convnet", ["vector"]), ("vit", ["age", "vector"])):
    given = {name: inputs[name] for name in names}
    try:
        importlib.import_module(f"runner.model.{module}").build(keras=keras, inputs=given, num_classes=5)
    except ValueError as error:
        found["refused"].append(str(error))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def built() -> dict[str, dict[str, Any]]:
    variables = {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    libraries = forks.OF_KERAS.items()
    return {keras: forks.answer("-c", SCRIPT, keras, library=library, **variables) for keras, library in libraries}


@pytest.mark.slow
@pytest.mark.parametrize("keras", forks.OF_KERAS)
def test_every_network_accepts_all_inputs(built: dict[str, dict[str, Any]], keras: str) -> None:
    beside = 3 + 1 + 1 + 3 + 2 * 2  # vector, age, price, one-hot town, two one-hot tags
    wanted = {
        "mlp": [64 + beside, 128],
        "convnet": [32 + beside, 256],
        "resnet": [64 + beside, 5],
        "vit": [64 + beside, 5],
    }
    names = [name for name in built[keras] if "." in name]
    assert len(names) == 7
    for name in names:
        outputs, shapes = built[keras][name]
        assert outputs == [2, 5]
        assert wanted[name.split(".")[0]] in shapes, name


@pytest.mark.slow
@pytest.mark.parametrize("keras", forks.OF_KERAS)
def test_categories_become_one_hot_and_other_integers_floats(built: dict[str, dict[str, Any]], keras: str) -> None:
    rng = np.random.default_rng(0)
    image, vector = rng.random((2, 64)).astype("float32"), rng.random((2, 3)).astype("float32")
    found = np.array(built[keras]["vector"])
    wanted = np.concatenate(
        [image, vector, [[7.0], [40.0]], [[1.5], [-2.0]], [[0, 0, 1], [1, 0, 0]], [[1, 0, 0, 1], [0, 1, 0, 1]]], 1
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.slow
def test_image_networks_reject_inputs_without_an_image(built: dict[str, dict[str, Any]]) -> None:
    for keras in forks.OF_KERAS:
        first, second = built[keras]["refused"]
        assert first == "it takes an image, [height, width, channel]; vector has shape [3]"
        assert second.startswith("it needs exactly one image among its inputs, but none of age, vector are images")
