"""Keras's guide "Multi-GPU distributed training with JAX" fails: it passes variables to `device_put`.

Repository: keras-team/keras-io, known as keras issue 18424. Versions: keras 3.15.1, jax 0.10.2; Linux, CPUs.

Expected: the guide's `get_replicated_train_state` places the variables of the model.

Happened: `ValueError: Triggering __jax_array__() during abstractification is no longer supported`. The guide must pass
`[variable.value for variable in model.trainable_variables]`.
"""

import os
import sys

os.environ["KERAS_BACKEND"], os.environ["JAX_PLATFORMS"] = "jax", "cpu"

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec())
try:
    jax.device_put(model.trainable_variables, everywhere)  # as the guide's get_replicated_train_state
except ValueError as error:
    print(f"ValueError: {error}")
else:
    sys.exit("gone")
