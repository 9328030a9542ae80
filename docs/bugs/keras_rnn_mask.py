"""tf_keras: an unrolled backward RNN, with a mask and zero outputs for masked steps, zeroes the wrong steps.

Repository: keras-team/tf-keras, seems known as issue 252. Versions: tensorflow 2.21.0, tf_keras 2.21.0; Linux, CPUs.

Expected: `unroll=True` does not change outputs.

Happened: the last step's output is zero. With `go_backwards`, `zero_output_for_mask` uses the mask in its given order.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1", "3"

import numpy as np
import tensorflow as tf
import tf_keras

x = tf.constant(np.random.default_rng(1).normal(size=(1, 4, 2)).astype("float32"))
mask = tf.constant([[True, True, True, False]])
options = {"return_sequences": True, "go_backwards": True, "zero_output_for_mask": True}
looped = tf_keras.layers.SimpleRNN(2, **options)
unrolled = tf_keras.layers.SimpleRNN(2, unroll=True, **options)
a = looped(x, mask=mask).numpy()
unrolled.build(x.shape)
unrolled.set_weights(looped.get_weights())
b = unrolled(x, mask=mask).numpy()
print(f"in a loop:\n{a[0].round(3)}\nunrolled:\n{b[0].round(3)}")
sys.exit(0 if not np.allclose(a, b) else "gone")
