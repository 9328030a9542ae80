"""tf_keras: `use_ema=True` of a DTensor optimizer averages nothing, and writes the initial weights into the model.

Repository: keras-team/tf-keras. Versions: tensorflow 2.21.0, tf_keras 2.21.0; Linux, CPUs.

Expected: after three steps of SGD from 1 to 0.7, the average is 0.7875, which `finalize_variable_values` writes.

Happened: it writes 1, the initial weights, also on one device, and without a warning. With a mesh, `apply_gradients`
calls `_internal_apply_gradients` of the base class. Only `_distributed_apply_gradients_fn` updates the averages.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1", "3"

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
variable = dtensor.DVariable(dtensor.copy_to_mesh(tf.ones(3), dtensor.Layout.replicated(mesh, 1)))
gradient = dtensor.copy_to_mesh(tf.ones(3), dtensor.Layout.replicated(mesh, 1))
optimizer = tf_keras.dtensor.experimental.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, mesh=mesh)
optimizer.build([variable])
step = tf.function(lambda: optimizer.apply_gradients([(gradient, variable)]))
for _ in range(3):
    step()
trained = dtensor.unpack(variable.read_value())[0].numpy()
optimizer.finalize_variable_values([variable])
averaged = dtensor.unpack(variable.read_value())[0].numpy()
print(f"the weights were 1 and are {trained} after three steps; their average, put into the model, is {averaged}")
sys.exit(0 if np.array_equal(averaged, np.ones(3)) else "gone")
