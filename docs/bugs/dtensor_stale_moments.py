"""TensorFlow DTensor: stock optimizers apply the previous step's moments on any mesh with more than one device.

DTensor merges all-reduces by default, and moves them across the writes of variables. An optimizer that assigns a
moment and reads it back gets the moment of the previous step. The program compares one step of SGD with momentum on
one device and on two.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1", "3"

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def moved(devices: int) -> np.ndarray:
    """Returns by how much one step moves each variable of two dense layers, in all."""
    names = [f"CPU:{number}" for number in range(devices)]
    mesh = dtensor.create_mesh([("batch", devices)], devices=names)
    tf_keras.backend.experimental.enable_tf_random_generator()
    tf_keras.utils.set_random_seed(1)
    maps = tf_keras.dtensor.experimental.LayoutMap(mesh=mesh)
    with maps.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Dense(16, activation="relu", input_shape=(8,), name="d1"),
                tf_keras.layers.Dense(3, name="d2"),
            ]
        )
    optimizer = tf_keras.dtensor.experimental.optimizers.SGD(0.1, momentum=0.9, mesh=mesh)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(8, 8)).astype("float32"), rng.integers(3, size=8).astype("int32")
    split = [dtensor.Layout.batch_sharded(mesh, "batch", rank) for rank in (2, 1)]
    placed = [dtensor.pack(tf.split(one, devices), layout) for one, layout in zip((x, y), split)]

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def read() -> list[np.ndarray]:
        return [dtensor.unpack(variable.read_value())[0].numpy() for variable in model.trainable_variables]

    before = read()
    step(*placed)
    return np.array([np.abs(new - old).sum() for new, old in zip(read(), before)])


one, two = moved(1), moved(2)
print("one step of SGD moves d1/kernel, d1/bias, d2/kernel, d2/bias by")
print("one device: ", one.round(4))
print("two devices:", two.round(4))
sys.exit(0 if np.abs(one - two).max() > 1e-3 else "gone: both are the same")
