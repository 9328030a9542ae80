"""TensorFlow DTensor: stock optimizers apply the previous step's moments on any mesh with more than one device.

Repository: tensorflow/tensorflow. Versions: tensorflow 2.21.0, tf_keras 2.21.0; Linux, CPUs.

Expected: one step of SGD with momentum moves the weights on two devices as on one.

Happened: three of four weights stay where they are, without a warning. The gradients are right. The optimizer assigns
a moment and reads it back. DTensor merges all-reduces by default, seems to move them across these writes, and the
optimizer gets the moment of the previous step. With DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION=0 in the
environment, both are equal. Adam, AdamW, RMSprop and Adagrad are affected too.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1", "3"

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(1)
x, *weights = (rng.normal(size=size).astype("float32") for size in [(8, 8), (8, 16), 16, (16, 3), 3])


def moved(devices: int) -> np.ndarray:
    """Returns by how much one step moves each variable of two dense layers, on average."""
    mesh = dtensor.create_mesh([("batch", devices)], devices=[f"CPU:{number}" for number in range(devices)])
    variables = [dtensor.DVariable(dtensor.copy_to_mesh(w, dtensor.Layout.replicated(mesh, w.ndim))) for w in weights]
    images = dtensor.pack(tf.split(x, devices), dtensor.Layout.batch_sharded(mesh, "batch", 2))
    optimizer = tf_keras.dtensor.experimental.optimizers.SGD(0.1, momentum=0.9, mesh=mesh)

    @tf.function
    def step(images: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(images @ variables[0] + variables[1])
            loss = tf.reduce_mean((hidden @ variables[2] + variables[3]) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step(images)
    news = [dtensor.unpack(variable.read_value())[0].numpy() for variable in variables]
    return np.array([np.abs(new - old).mean() for new, old in zip(news, weights)])


one, two = moved(1), moved(2)
print("one step of SGD moves d1/kernel, d1/bias, d2/kernel, d2/bias by")
print(f"one device:  {one.round(4)}\ntwo devices: {two.round(4)}")
sys.exit(0 if np.abs(one - two).max() > 1e-3 else "gone")
