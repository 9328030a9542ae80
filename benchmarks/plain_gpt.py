"""GPT-2 and its training by Adam in JAX alone, as somebody writes it who needs this one and no more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Params = dict[str, Any]


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def _block(p: Params, x: jax.Array, heads: int) -> jax.Array:
    """One pre-norm block of tokens (B, T, D)."""
    batch, tokens, dim = x.shape
    y = _norm(x, p["scale1"], p["shift1"])
    q, k, v = jnp.split(y @ p["qkv"] + p["qkv_bias"], 3, -1)
    q, k, v = (each.reshape(batch, tokens, heads, -1).swapaxes(1, 2) for each in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(dim // heads)
    scores = jnp.where(np.tril(np.ones((tokens, tokens), bool)), scores, -1e9)
    mixed = (jax.nn.softmax(scores, -1) @ v).swapaxes(1, 2).reshape(batch, tokens, dim)
    x = x + mixed @ p["out"] + p["out_bias"]
    y = _norm(x, p["scale2"], p["shift2"])
    return x + jax.nn.gelu(y @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def _loss(p: Params, tokens: jax.Array, label: jax.Array, heads: int) -> jax.Array:
    x = p["tokens"][tokens] + p["places"]
    for block in p["blocks"]:
        x = _block(block, x, heads)
    logp = jax.nn.log_softmax(_norm(x, p["scale"], p["shift"]) @ p["head"])
    return -jnp.take_along_axis(logp, label[..., None], -1).mean()


@functools.partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def _step(state: tuple[Any, ...], tokens: jax.Array, label: jax.Array, heads: int, rate: float) -> Any:
    p, m, v, count = state
    loss, gradient = jax.value_and_grad(_loss)(p, tokens, label, heads)
    count = count + 1
    alpha = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)
    p = jax.tree.map(lambda p, m, v: p - alpha * m / (jnp.sqrt(v) + 1e-7), p, m, v)
    return (p, m, v, count), loss


class PlainGpt:
    """State and loop; on several devices the batch is split and the state is whole on each."""

    def __init__(self, size: Any, vocabulary: int, heads: int, rate: float, devices: int = 1) -> None:
        """Draws the weights of a `benchmarks.language_model.Size`."""
        rng = np.random.default_rng(0)
        d = size.dim

        def normal(*shape: int) -> np.ndarray:
            return (0.02 * rng.normal(size=shape)).astype(np.float32)

        def block() -> Params:
            kernels = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
            made = {name: normal(*shape) for name, shape in kernels.items()}
            made |= {f"{name}_bias": np.zeros(shape[1], np.float32) for name, shape in kernels.items()}
            ones = np.ones(d, np.float32)
            zeros = np.zeros(d, np.float32)
            return made | {"scale1": ones, "scale2": ones, "shift1": zeros, "shift2": zeros}

        params = {
            "tokens": normal(vocabulary, d),
            "places": normal(size.tokens, d),
            "blocks": [block() for _ in range(size.layers)],
            "scale": np.ones(d, np.float32),
            "shift": np.zeros(d, np.float32),
            "head": normal(d, vocabulary),
        }
        mesh = Mesh(np.array(jax.devices()[:devices]), ("batch",))
        whole = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec("batch"))
        zeros = jax.tree.map(np.zeros_like, params)
        self._state = jax.device_put((params, zeros, jax.tree.map(np.copy, zeros), np.float32(0)), whole)
        self._size = size
        self._heads = heads
        self._rate = rate
        self._alone = devices == 1

    def turn(self, rows: Callable[[Any, int], tuple[np.ndarray, np.ndarray]]) -> Callable[[int], float]:
        """Returns a function that does so many steps, and gives the last loss."""

        def turn(steps: int) -> float:
            tokens, label = (
                each.reshape(steps, self._size.batch, -1) for each in rows(self._size, steps * self._size.batch)
            )
            for x, y in zip(tokens, label, strict=True):
                placed = jax.device_put((x, y), self._split)
                self._state, loss = _step(self._state, *placed, self._heads, self._rate)
                if not self._alone:  # two programs at a time would starve each other's all-reduce
                    jax.block_until_ready(loss)
            return float(loss)

        return turn
