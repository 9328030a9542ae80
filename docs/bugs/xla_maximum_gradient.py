"""JAX on CPUs at optimization level 0: the gradient of a maximum over a dim is wrong.

Repository: jax-ml/jax. Versions: jax 0.10.2, jaxlib 0.10.2; Linux, CPUs.

Expected: the gradient at `xla_backend_optimization_level=0` is that of level 1, up to rounding.

Happened: it is off by 75%, without a warning; without the ReLU it is NaN. The gradient of `reduce_max` compares all
terms with the maximum, bit for bit (`_reduce_chooser_jvp_rule`). XLA seems to compute the terms twice, with different
rounding, so that no term may be equal. Issue 40564 was the same of `jnp.maximum` on GPUs. Pull request 40578 fixed
that, and `reduce_max` is as before in jax 0.12.0.1.
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
points, kernel = rng.normal(size=(16, 32, 8)).astype("float32"), rng.normal(size=(8, 16)).astype("float32")
head = rng.normal(size=(16, 16)).astype("float32")


def loss(kernel: jax.Array) -> jax.Array:
    x = points @ kernel
    mean, factor = x.mean((0, 1)), jax.lax.rsqrt(x.var((0, 1)) + 1e-3) * 1.1
    x = jax.nn.relu(x * factor + (0.3 - mean * factor))
    return jnp.sum(jnp.tanh(jnp.max(x, 1) @ head))


def off(level: int) -> float:
    compiled = jax.jit(jax.grad(loss), compiler_options={"xla_backend_optimization_level": level})
    return float(abs(compiled(kernel) - right).max() / abs(right).max())


right = jax.grad(loss)(kernel)
zero, one = off(0), off(1)
print(f"level 0: off by {zero:.1%} of the largest entry")
print(f"level 1: off by {one:.1%}")
sys.exit(0 if zero > 0.01 > one else "gone")
