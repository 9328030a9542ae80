"""Stock tf_keras on one device: its own layers, optimizer and constraints, in one graph function."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from runner.engine.dtensor import masks
from runner.engine.dtensor.adapters.keras import KerasAdapter
from runner.engine.dtensor.adapters.paths import named_variables
from runner.model import scope
from tests.layers.setup import MOMENTUM, RATE, STEPS, Arrays, Setup, config, generic


def train(setup: Setup) -> Arrays:
    """Returns `start/`, `final/<path>`, `gradient0/<path>` and so on, `loss`, and `outputs` before training."""
    tf_keras.backend.experimental.enable_tf_random_generator()
    made = config(setup.engine, "single", setup.names)
    with tf.device("/CPU:0"):
        return _trained(setup, KerasAdapter(made.model, setup.data, made.trainer.seed).plain(), made.trainer.seed)


def _trained(setup: Setup, model: tf_keras.Model, seed: int) -> Arrays:
    variables = named_variables(model)
    start = generic({path: variable.numpy() for path, variable in variables.items()})
    for path, variable in variables.items():
        variable.assign(start[path])
    paths = {id(variable): path for path, variable in variables.items()}
    trained = model.trainable_variables
    optimizer = tf_keras.optimizers.SGD(RATE, momentum=MOMENTUM, jit_compile=False)
    optimizer.build(trained)
    loss_of = tf_keras.losses.MeanSquaredError()

    @tf.function(autograph=False)
    def step(inputs: Any, target: Any, number: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            with scope.enter(scope.Scope(seed, number)), masks.masks_from_scope(model):
                outputs = model(inputs, training=True)
            value = loss_of(target, outputs) + tf.add_n([*map(tf.reduce_sum, model.losses), tf.constant(0.0)])
        gradients = tape.gradient(value, trained)
        optimizer.apply_gradients(zip(gradients, trained, strict=True))
        pairs = zip(gradients, trained, strict=True)
        return value, [tf.zeros_like(v) if g is None else tf.convert_to_tensor(g) for g, v in pairs]

    @tf.function(autograph=False)
    def predict(inputs: Any) -> tf.Tensor:
        with scope.enter(scope.Scope(seed)), masks.masks_from_scope(model):
            return model(inputs, training=False)

    inputs, target = tf.nest.map_structure(tf.constant, (setup.inputs, setup.target))
    found = {f"start/{path}": value for path, value in start.items()}
    found["outputs"] = predict(inputs).numpy()
    losses = []
    for number in range(STEPS):
        value, gradients = step(inputs, target, tf.constant(number))
        losses.append(float(value))
        named = zip(trained, gradients, strict=True)
        found |= {f"gradient{number}/{paths[id(v)]}": gradient.numpy() for v, gradient in named}
    found |= {f"final/{path}": variable.numpy() for path, variable in variables.items()}
    return found | {"loss": np.asarray(losses)}
