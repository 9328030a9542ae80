"""Keras 3: `DataParallel` on a mesh with two axes raises a TypeError instead of a warning.

Repository: keras-team/keras. Versions: keras 3.15.1, jax 0.10.2; Linux, CPUs.

Expected: the warning "Expect the input mesh to be 1D, but received mesh.devices.ndim=2. ...".

Happened: `TypeError: category must be a Warning subclass, not 'int'`. `warnings.warn` in
`DataParallel._initialize_with_device_mesh` gets the number of dims as its second argument instead of a formatted text.
"""

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
