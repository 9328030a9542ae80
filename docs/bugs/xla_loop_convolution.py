"""XLA on CPUs: the gradient of a convolution takes many times as long in a loop as outside.

Repository: openxla/xla, known as jax issue 12868. Versions: jax 0.10.2, jaxlib 0.10.2; Linux, CPUs.

Expected: a step in `lax.scan` takes as long as alone.

Happened: it takes 16 to 25 times as long.
"""

import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

images, kernel = jnp.ones((32, 28, 28, 16)), jnp.ones((5, 5, 16, 24)) * 0.01


def loss(kernel: jax.Array) -> jax.Array:
    out = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.mean(out**2)


def update(kernel: jax.Array, _: None) -> tuple[jax.Array, None]:
    return kernel - 0.1 * jax.grad(loss)(kernel), None


def seconds(step: object, times: int) -> float:
    jax.block_until_ready(step(kernel))  # compiles
    began = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(step(kernel))
    return (time.perf_counter() - began) / times


alone = seconds(jax.jit(lambda kernel: update(kernel, None)[0]), 5)
looped = seconds(jax.jit(lambda kernel: jax.lax.scan(update, kernel, length=4)[0]), 1) / 4
ratio = looped / alone
print(f"a step takes {1000 * alone:.1f} ms alone and {1000 * looped:.1f} ms in a loop: {ratio:.0f} times as long")
sys.exit(0 if looped > 2 * alone else "gone")
