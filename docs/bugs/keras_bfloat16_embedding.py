"""Keras 3: with `mixed_bfloat16`, gradients of a frequent token are summed in bfloat16, and the sum stops growing.

Repository: keras-team/keras. Versions: keras 3.15.1, jax 0.10.2; Linux, CPUs.

Expected: the gradient of a mean over equal tokens does not depend on their number.

Happened: that of 4,096 tokens is a twelfth of that of 16. `Embedding` asks for its table in float32
(`autocast = False`). `stateless_call` of a model with a lower compute dtype casts the table to bfloat16 all the same,
so its gradient is a sum in bfloat16. Such a sum stops growing after some hundreds of equal terms.
"""

import os
import sys

os.environ["KERAS_BACKEND"], os.environ["JAX_PLATFORMS"] = "jax", "cpu"

import jax
import jax.numpy as jnp
import keras
import numpy as np

keras.config.set_dtype_policy("mixed_bfloat16")
keras.utils.set_random_seed(1)
tokens = keras.Input((16,), dtype="int32")
model = keras.Model(tokens, keras.layers.Dense(64)(keras.layers.Embedding(64, 8)(tokens)))


def loss(weights: list[jax.Array], rows: np.ndarray) -> jax.Array:
    logits, _ = model.stateless_call(weights, [], rows)
    return -jnp.mean(jax.nn.log_softmax(logits.astype("float32"))[..., 8])


def size(rows: int) -> float:
    """Returns the size of the gradient of the mean loss of rows of one token: the same for any number of rows."""
    weights = [each.value for each in model.trainable_variables]
    return float(jnp.linalg.norm(jax.jit(jax.grad(loss))(weights, np.full((rows, 16), 7))[0].astype("float32")))


few, many = size(1), size(256)
print(
    f"the gradient of a table held in {model.trainable_variables[0].dtype}, of a mean over tokens that are all alike:"
)
print(f"{few:.4f} of 16 tokens, {many:.4f} of 4,096")
sys.exit(0 if many < 0.5 * few else "gone")
