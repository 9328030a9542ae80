"""One builder serves tf_keras and Keras 3."""

from __future__ import annotations

import os
import sys

import pytest

from tests import forks

SCRIPT = """
import importlib, sys
import numpy as np
from runner.model import mlp
keras = importlib.import_module(sys.argv[1])
for name in ("sequential", "functional", "subclassed"):
    model = getattr(mlp, name)(keras=keras, inputs=(28, 28, 1), num_classes=10, hidden=[128], activation="relu")
    logits = np.asarray(model(np.zeros((2, 28, 28, 1), "float32")))
    print(name, logits.shape, [tuple(w.shape) for w in model.weights])
plain = mlp.explicit(keras=keras, inputs=(28, 28, 1), num_classes=10, layouts={})
print([layer.name for layer in plain.layers])
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["tf_keras", "keras"])
def test_every_style_builds_the_same_network_under_tf_keras_and_keras_3(library: str) -> None:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-c", SCRIPT, library]
    done = forks.run(command, library="tensorflow", env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    shapes = "(2, 10) [(784, 128), (128,), (128, 10), (10,)]"
    styles = [f"{name} {shapes}" for name in ("sequential", "functional", "subclassed")]
    assert done.stdout.splitlines() == [*styles, "['flatten', 'd1', 'd2']"]
