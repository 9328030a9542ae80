"""Keras 3: `DataParallel` on a mesh with two axes raises a TypeError instead of a warning."""

import os
import sys

os.environ["KERAS_BACKEND"], os.environ["JAX_PLATFORMS"] = "jax", "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 4)

import keras

mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), keras.distribution.list_devices())
try:
    keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False)
except TypeError as error:
    print(f"TypeError: {error}")
else:
    sys.exit("gone")
