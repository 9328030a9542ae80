"""Models that DTensor can't compute, or computes wrongly, are rejected in one line that names the layer and a fix."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.nightly import nightly_except

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

MODULE = """
import tensorflow as tf
import tf_keras
from tf_keras import layers as stock


def _net(keras, input_shape, num_classes, middle):
    inputs = keras.Input(input_shape)
    x = keras.layers.Flatten(name="flat")(middle(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(x))


def responses(keras, input_shape, num_classes):
    respond = stock.Lambda(lambda y: tf.nn.local_response_normalization(y, 1), name="my_responses")
    return _net(keras, input_shape, num_classes, lambda x: respond(stock.Dense(4)(x)))


def new_dim(keras, input_shape, num_classes):
    return _net(keras, input_shape, num_classes, lambda x: stock.Lambda(lambda y: y[:, None], name="my_dim")(x))


def number(keras, input_shape, num_classes):
    return _net(keras, input_shape, num_classes, lambda x: stock.Lambda(lambda y: y[:, 0], name="my_row")(x))


def noise(keras, input_shape, num_classes):
    add = stock.Lambda(lambda y: y + tf.random.normal(tf.shape(y)), name="my_noise")
    return _net(keras, input_shape, num_classes, lambda x: add(x))


def taken(keras, input_shape, num_classes):
    return _net(keras, input_shape, num_classes, lambda x: keras.layers.Dense(4, name="ema")(x))


def frozen(keras, input_shape, num_classes):
    model = _net(keras, input_shape, num_classes, lambda x: x)
    model.trainable = False
    return model


def norm(keras, input_shape, num_classes):
    return _net(keras, input_shape, num_classes, lambda x: keras.layers.BatchNormalization(name="norm")(x))
"""

CASES = [
    ("responses", [], ["LRN", "layer my_responses", "engine=jax"]),
    ("new_dim", [], ["my_dim", "x[:, None]", "tf.expand_dims"]),
    ("number", [], ["my_row", "x[:, 0]", "tf.gather"]),
    ("noise", [], ["RandomStandardNormal", "layer my_noise", "engine=jax"]),
    ("taken", [], ["the layer name 'ema' is reserved", "ema_layer"]),
    ("taken", ["engine=jax"], ["the layer name 'ema' is reserved", "ema_layer"]),
    ("frozen", [], ["model._target_=rejected_models.frozen", "no trainable variable"]),
    ("frozen", ["engine=jax"], ["model._target_=rejected_models.frozen", "no trainable variable"]),
    ("norm", ["dataset.remainder=pad"], ["dataset.remainder=pad", "batch statistics of layer norm", "drop"]),
]


@pytest.mark.parametrize(
    ("builder", "extra", "shown"),
    nightly_except([CASES[1], CASES[4], CASES[7]], CASES),
    ids=["-".join((case[0], *case[1])) for case in CASES],
)
def test_a_model_that_cannot_work_is_rejected(
    tmp_path: Path, builder: str, extra: list[str], shown: list[str]
) -> None:
    (tmp_path / "rejected_models.py").write_text(MODULE)
    arguments = ["dataset=digits", "dataset.batch_size=16", "mesh=batch2", "tracking=none"]
    target = ["model=custom", f"model._target_=rejected_models.{builder}", f"hydra.run.dir={tmp_path / 'run'}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = forks.run(
        [sys.executable, "-m", "runner", *arguments, *target, *extra],
        cwd=tmp_path,
        env=environment,
        timeout=180,
    )
    # With engine=jax, TensorFlow's own log comes before: the module imports it.
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.endswith(f"{line}\n")
    for part in shown:
        assert part in line
    assert "Traceback" not in done.stdout
