"""XLA on CPUs: programs on virtual devices deadlock while they wait for threads, and the process is aborted.

Repository: openxla/xla. Versions: jax 0.10.2, jaxlib 0.10.2; Linux, 8 virtual CPU devices.

Expected: a loop of data-parallel steps runs with any number of threads, slowly if there are few.

Happened: the process is aborted after a timeout of a rendezvous. A program occupies one thread per device until all
have met in an all-reduce. JAX starts the next program before the last one has ended, so eight devices need sixteen
threads. Here there are eight (PJRT_NPROC); the default is one per core. Blocking on each step is a workaround.
"""

import os
import subprocess
import sys

ABORTED = -6
if sys.argv[1:] != ["train"]:
    flags = (
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=5 --xla_cpu_collective_call_terminate_timeout_seconds=15"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PJRT_NPROC": "8", "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, __file__, "train"], env=environment, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "Expected" in line or "rendezvous" in line.lower()]
    print(f"ended with {done.returncode}: {said[-1][:220] if said else done.stdout}")
    sys.exit(0 if done.returncode == ABORTED else "gone")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", 8)
mesh = Mesh(np.array(jax.devices()), ("batch",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
weights = jax.device_put(jnp.ones((784, 128)) * 0.01, whole)
batch = jax.device_put(jnp.ones((128, 784)), split)


@jax.jit
def step(weights: jax.Array, batch: jax.Array) -> jax.Array:
    return weights - 0.01 * jax.grad(lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2))(weights)


for _ in range(5000):
    weights = step(weights, batch)
print("5000 steps:", float(weights[0, 0]))
