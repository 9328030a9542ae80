"""The transformer in JAX alone, as one reads it in the papers, and its training by Adam: nothing of the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = Mapping[str, Any]


def logits(w: Weights, tokens: Any, segments: Any, options: Mapping[str, Any], heads: int, depth: int) -> Any:
    """Returns (B, T, V) of tokens (B, T) and documents (B, T) or None."""
    with jax.default_matmul_precision("highest"):
        return _outputs(w, tokens, segments, options, heads, depth)[0]


def _outputs(
    w: Weights, tokens: Any, segments: Any, options: Mapping[str, Any], heads: int, depth: int
) -> tuple[Any, Any]:
    """Returns the logits, and the sum of the losses of the routers."""
    added = 0.0
    length = tokens.shape[1]
    x = w["token_embedding/embeddings"][tokens]
    if options.get("scaled_embeddings"):
        x = x * np.sqrt(x.shape[-1])
    if "position_embedding/embeddings" in w:
        x = x + w["position_embedding/embeddings"][:length]
    seen = np.tril(np.ones((length, length), bool))[None, None]
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    for index in range(depth):
        name = f"block_{index}"
        y = _norm(w, f"{name}/attention_norm", x)
        q, k, v = (_heads(w, f"{name}/attention/{part}", y) for part in ("query", "key", "value"))
        if options.get("query_key_norm"):
            q, k = _norm(w, f"{name}/attention/query_norm", q), _norm(w, f"{name}/attention/key_norm", k)
        base = options.get("wavelength", 10000.0)
        visible = seen
        # Gemma's order: the last of so many blocks is global.
        if "window" in options and (index + 1) % options.get("global_every", depth + 1):
            place = np.arange(length)
            visible = seen & (place[:, None] - place < options["window"])
            base = options.get("local_wavelength", base)
        if options.get("positions") == "rotary":
            q, k = _turned(q, base), _turned(k, base)
        times = heads // k.shape[1]
        k, v = (jnp.stack([each] * times, 2).reshape(q.shape) for each in (k, v))
        scores = _capped(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), options.get("attention_cap"))
        scores = jnp.where(visible, scores, -jnp.inf)
        mixed = jax.nn.softmax(scores, axis=-1) @ v  # (B, H, T, K)
        out = w[f"{name}/attention/output/kernel"]
        y = jnp.einsum("bhtk,hkd->btd", mixed, out) + w.get(f"{name}/attention/output/bias", 0.0)
        x = x + (_norm(w, f"{name}/attention_post_norm", y) if options.get("post_norm") else y)
        y = _norm(w, f"{name}/feedforward_norm", x)
        if "experts" in options:
            y, imbalance = _mixture(w, f"{name}/experts", y, options.get("experts_per_token", 2))
            x = x + y
            added = added + options.get("router_loss", 0.0) * imbalance
            continue
        hidden = _dense(w, f"{name}/feedforward/up", y)
        if options.get("activation") == "swiglu":
            hidden = jax.nn.silu(_dense(w, f"{name}/feedforward/gate", y)) * hidden
        elif options.get("activation") == "geglu":
            hidden = _gelu(_dense(w, f"{name}/feedforward/gate", y)) * hidden
        else:
            hidden = _gelu(hidden)
        y = _dense(w, f"{name}/feedforward/down", hidden)
        x = x + (_norm(w, f"{name}/feedforward_post_norm", y) if options.get("post_norm") else y)
    x = _norm(w, "norm", x)
    scores = x @ (w["head/kernel"] if "head/kernel" in w else w["token_embedding/embeddings"].T)
    return _capped(scores, options.get("logits_cap")), added


def _mixture(w: Weights, name: str, y: Any, per_token: int) -> tuple[Any, Any]:
    every = jax.nn.softmax(y @ w[f"{name}/router/kernel"])
    chances, chosen = jax.lax.top_k(every, per_token)
    chances = chances / chances.sum(-1, keepdims=True)
    added, imbalance = 0.0, 0.0
    experts = every.shape[-1]
    for expert in range(experts):
        imbalance = imbalance + experts * (chosen == expert).mean() * every[..., expert].mean()
        gate, up, down = (w[f"{name}/{part}/kernel"][expert] for part in ("gate", "up", "down"))
        share = jnp.where(chosen == expert, chances, 0.0).sum(-1, keepdims=True)
        added = added + share * ((jax.nn.silu(y @ gate) * (y @ up)) @ down)
    return added, imbalance


def _capped(x: Any, cap: float | None) -> Any:
    return x if cap is None else cap * jnp.tanh(x / cap)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _dense(w: Weights, name: str, x: Any) -> Any:
    return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0)


def _heads(w: Weights, name: str, x: Any) -> Any:
    """Returns (B, H, T, K)."""
    found = jnp.einsum("btd,dhk->bhtk", x, w[f"{name}/kernel"])
    bias = w.get(f"{name}/bias")
    return found if bias is None else found + bias[None, :, None]


def _norm(w: Weights, name: str, x: Any) -> Any:
    if f"{name}/scale" in w:
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * w[f"{name}/scale"]
    centered = x - x.mean(-1, keepdims=True)
    x = centered / jnp.sqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-5)
    return x * w[f"{name}/gamma"] + w[f"{name}/beta"]


def _turned(x: Any, base: float) -> Any:
    """Returns (B, H, T, K) whose pairs (i, i + K / 2), as complex numbers, are turned by their place."""
    half = x.shape[-1] // 2
    pairs = x[..., :half] + 1j * x[..., half:]
    angle = np.arange(x.shape[2])[:, None] * base ** (-np.arange(half) / half)
    pairs = pairs * np.exp(1j * angle).astype(np.complex64)
    return jnp.concatenate([pairs.real, pairs.imag], -1)


def loss(w: Weights, tokens: Any, label: Any, segments: Any, *told: Any) -> Any:
    """Returns the mean cross-entropy, and what the routers add."""
    with jax.default_matmul_precision("highest"):
        scores, added = _outputs(w, tokens, segments, *told)
    return added - jnp.take_along_axis(jax.nn.log_softmax(scores), label[..., None], -1).mean()


def train(
    w: Weights, arrays: Mapping[str, Any], options: Mapping[str, Any], heads: int, depth: int, rate: float
) -> dict[str, Any]:
    """Returns losses, the first gradients, and the weights after Adam's steps (beta 0.9 and 0.99, epsilon 1e-3).

    Args:
      w: the first weights.
      arrays: (K, B, T) by name.
      options: of the model.
      heads: of queries.
      depth: blocks.
      rate: of learning.
    """

    def graded(w: Weights, tokens: Any, label: Any, segments: Any) -> Any:
        return jax.value_and_grad(loss)(w, tokens, label, segments, options, heads, depth)

    step_of = jax.jit(graded)
    weights = {path: jnp.asarray(value) for path, value in w.items()}
    m, v = ({path: jnp.zeros_like(value) for path, value in weights.items()} for _ in range(2))
    losses: list[float] = []
    first: dict[str, Any] = {}
    segments = arrays.get("segments")
    for step, (tokens, label) in enumerate(zip(arrays["tokens"], arrays["label"], strict=True)):
        value, gradients = step_of(weights, tokens, label, None if segments is None else segments[step])
        losses.append(float(value))
        first = first or {f"gradient/{path}": np.asarray(g) for path, g in gradients.items()}
        alpha = rate * np.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        m = {path: 0.9 * m[path] + 0.1 * g for path, g in gradients.items()}
        v = {path: 0.99 * v[path] + 0.01 * g * g for path, g in gradients.items()}
        weights = {path: x - alpha * m[path] / (jnp.sqrt(v[path]) + 1e-3) for path, x in weights.items()}
    return {"loss": np.array(losses), **first, **{path: np.asarray(x) for path, x in weights.items()}}
