"""tf_keras: a metric without `mesh=` in a DTensor function silently counts only each device's own share.

Repository: keras-team/tf-keras. Versions: tensorflow 2.21.0, tf_keras 2.21.0; Linux, CPUs.

Expected: the mean of sixteen ones is 1.0, or an error says that the metric needs `mesh=`.

Happened: it is 0.0, or 0.125 at other times, without a warning. The variables of the metric are ordinary ones. A
DTensor function reads and writes an ordinary `tf.Variable` once per device, asynchronously.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1", "3"

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
mesh = dtensor.create_mesh([("batch", 8)], devices=[f"CPU:{number}" for number in range(8)])
ones = dtensor.pack([tf.ones(2)] * 8, dtensor.Layout.batch_sharded(mesh, "batch", 1))
metric = tf_keras.metrics.Mean()


@tf.function
def update() -> None:
    metric.update_state(ones)


update()
mean = float(metric.result())
print(f"the mean of sixteen ones is {mean}")
sys.exit(0 if not np.isclose(mean, 1) else "gone")
