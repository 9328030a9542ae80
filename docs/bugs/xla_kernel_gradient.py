"""XLA: if a mesh axis does not shard the images, the gradient of a depthwise kernel counts each copy of them.

Repository: openxla/xla. Versions: jax 0.10.2, jaxlib 0.10.2; Linux, 8 virtual CPU devices.

Expected: the gradient of a jitted function does not depend on the sharding of its inputs.

Happened: where images are sharded over one of two axes, 4 x 2, and replicated over the other, the gradient is twice
that of one device, without a warning, with Shardy and with GSPMD. Sharded over all eight devices it is right. The same
happens to any kernel if images are sharded by height only, on a mesh that has a second axis.
"""

import os
import sys

os.environ["JAX_PLATFORMS"], os.environ["PJRT_NPROC"] = "cpu", "16"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", 8)
rng = np.random.default_rng(1)
images, kernel = rng.normal(size=(8, 6, 6, 4)).astype("float32"), rng.normal(size=(3, 3, 1, 4)).astype("float32")


def loss(kernel: jax.Array, images: jax.Array) -> jax.Array:
    out = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
    )
    return jnp.sum(out**2)


def gradient(*axes: tuple[str, int]) -> np.ndarray:
    mesh = Mesh(np.array(jax.devices()).reshape([size for _, size in axes]), [name for name, _ in axes])
    whole, by_batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    given = jax.device_put(kernel, whole), jax.device_put(images, by_batch)
    return np.asarray(jax.jit(jax.grad(loss), out_shardings=whole)(*given))


one = np.asarray(jax.jit(jax.grad(loss))(kernel, images))
eight, four_two = gradient(("batch", 8)), gradient(("batch", 4), ("model", 2))
print(f"batch=8         is {np.median(eight / one):.3f} times the gradient of one device")
print(f"batch=4 model=2 is {np.median(four_two / one):.3f} times the gradient of one device")
sys.exit(
    0
    if not np.allclose(four_two, one, rtol=1e-3, atol=1e-3) and np.allclose(eight, one, rtol=1e-3, atol=1e-3)
    else "gone"
)
