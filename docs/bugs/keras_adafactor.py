"""Keras 3: Adafactor's first step is NaN where a row and a column of a kernel's gradient are zero.

Repository: keras-team/keras. Versions: keras 3.15.1, jax 0.10.2; Linux, CPUs.

Expected: a weight whose gradient is zero stays, and the others move by about 0.1.

Happened: all weights are NaN. The estimate of the second moment is a product of a mean of the row and a mean of the
column. Both are `epsilon_1` here, 1e-30, and their product is 0 in float32. The update is 0 / 0, and the root mean
square that clips it spreads the NaN. ReLU networks have such rows and columns. With `epsilon_1=1e-16` it works.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np


def stepped(epsilon_1):
    """Returns a kernel of ones after one step; the gradient of its first row and of its first column is zero."""
    kernel = keras.Variable(np.ones((3, 2), np.float32))
    optimizer = keras.optimizers.Adafactor(learning_rate=0.1, epsilon_1=epsilon_1)
    gradient = np.zeros((3, 2), np.float32)
    gradient[1:, 1:] = 0.1
    optimizer.apply_gradients([(gradient, kernel)])
    return keras.ops.convert_to_numpy(kernel)


for epsilon_1 in (1e-30, 1e-16):
    print(f"epsilon_1={epsilon_1:g}:", *(f"{value:.3f}" for value in stepped(epsilon_1).ravel()))
sys.exit(0 if np.isnan(stepped(1e-30)).any() else "gone")
