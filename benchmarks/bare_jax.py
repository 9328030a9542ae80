"""A bare JAX loop in several processes, which `benchmarks.processes` starts and holds the engine `jax` against.

It is what somebody writes who needs this one training and no more: `jax.distributed` over gloo, `jax.sharding` of the
batch, one jitted step a call, each process placing its own rows of every batch from the host, Adam by hand. Imports
neither Keras nor the runner.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.data import NUM_CLASSES, TASKS, Examples, read

Params = dict[str, Any]
_SEED = 1337
# of the convnet; the last two are Keras's of batch normalization
_DROPOUT = 0.5
_MOMENTUM = 0.99
_EPSILON = 1e-3


@dataclass(frozen=True)
class Network:
    """A model as two functions.

    Attributes:
      shapes: of what is trained, by name; those of one dim start at 0, the others by Glorot and Bengio (2010).
      widths: of the batch normalizations, by name.
      apply: (params, statistics, images (B, 28, 28, 1) from 0 to 1, key) -> logits (B, 10), new statistics.
    """

    shapes: dict[str, tuple[int, ...]]
    widths: dict[str, int]
    apply: Callable[[Params, Params, jax.Array, jax.Array], tuple[jax.Array, Params]]


def _mlp(params: Params, stats: Params, images: jax.Array, key: jax.Array) -> tuple[jax.Array, Params]:
    del key
    hidden = jax.nn.relu(images.reshape(len(images), -1) @ params["d1"] + params["b1"])
    return hidden @ params["d2"] + params["b2"], stats


def _convnet(params: Params, stats: Params, images: jax.Array, key: jax.Array) -> tuple[jax.Array, Params]:
    """The network of `runner.model.convnet`."""
    x = images
    new = {}
    for name, stride, padding in (("c1", 1, "SAME"), ("c2", 2, "VALID"), ("c3", 2, "SAME")):
        x = lax.conv_general_dilated(
            x, params[name], (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        if f"{name}_bias" in params:
            x = x + params[f"{name}_bias"]
        mean = jnp.mean(x, (0, 1, 2))
        square = jnp.mean(jnp.square(x), (0, 1, 2))
        variance = square - jnp.square(mean)
        x = jax.nn.relu((x - mean) * lax.rsqrt(variance + _EPSILON) + params[f"{name}_beta"])
        moved = jnp.stack([mean, variance])
        new[name] = stats[name] * _MOMENTUM + lax.stop_gradient(moved) * (1 - _MOMENTUM)
    x = jax.nn.relu(jnp.mean(x, (1, 2)) @ params["d1"] + params["b1"])
    kept = jax.random.bernoulli(key, 1 - _DROPOUT, x.shape)
    return jnp.where(kept, x / (1 - _DROPOUT), 0.0) @ params["d2"] + params["b2"], new


NETWORKS = {
    "mlp": Network({"d1": (784, 128), "b1": (128,), "d2": (128, NUM_CLASSES), "b2": (NUM_CLASSES,)}, {}, _mlp),
    "convnet": Network(
        {
            "c1": (3, 3, 1, 12),
            "c1_beta": (12,),
            "c2": (6, 6, 12, 24),
            "c2_beta": (24,),
            "c3": (6, 6, 24, 32),
            "c3_bias": (32,),
            "c3_beta": (32,),
            "d1": (32, 256),
            "b1": (256,),
            "d2": (256, NUM_CLASSES),
            "b2": (NUM_CLASSES,),
        },
        {"c1": 12, "c2": 24, "c3": 32},
        _convnet,
    ),
}


def initial(network: Network) -> Params:
    """Returns the state before the first step, on the host: the same in every process."""
    rng = np.random.default_rng(_SEED)
    params: Params = {}
    for name, shape in network.shapes.items():
        field = int(np.prod(shape[:-2]))
        limit = np.sqrt(6.0 / (field * (shape[-2] + shape[-1]))) if len(shape) > 1 else 0.0
        params[name] = rng.uniform(-limit, limit, shape).astype(np.float32)
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    stats = {
        name: np.stack([np.zeros(width), np.ones(width)]).astype(np.float32) for name, width in network.widths.items()
    }
    return {"params": params, "stats": stats, "m": zeros, "v": zeros, "step": np.zeros((), np.float32)}


def make_step(network: Network, rate: float, whole: NamedSharding) -> Any:
    """Returns the jitted step: (state, images, labels) -> (state, loss).

    Args:
      network: what is trained.
      rate: Adam's learning rate.
      whole: how every array of the state lies.
    """

    def mean_loss(params: Params, stats: Params, images: jax.Array, labels: jax.Array, key: jax.Array) -> Any:
        logits, stats = network.apply(params, stats, images.astype(jnp.float32) / 255.0, key)
        wanted = jax.nn.one_hot(labels, NUM_CLASSES)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * wanted, axis=-1)), stats

    def train(state: Params, images: jax.Array, labels: jax.Array) -> tuple[Params, jax.Array]:
        key = jax.random.fold_in(jax.random.key(_SEED), state["step"].astype(jnp.uint32))
        differentiated = jax.value_and_grad(mean_loss, has_aux=True)
        (loss, stats), gradients = differentiated(state["params"], state["stats"], images, labels, key)
        step = state["step"] + 1
        m = jax.tree.map(lambda one, g: one + (g - one) * (1 - 0.9), state["m"], gradients)
        v = jax.tree.map(lambda one, g: one + (jnp.square(g) - one) * (1 - 0.999), state["v"], gradients)
        alpha = rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        params = jax.tree.map(lambda w, a, b: w - a * alpha / (jnp.sqrt(b) + 1e-7), state["params"], m, v)
        return {"params": params, "stats": stats, "m": m, "v": v, "step": step}, loss

    return jax.jit(train, donate_argnums=0, out_shardings=whole)


def batches(examples: Examples, process: int, processes: int) -> Iterator[tuple[Any, Any]]:
    """Yields a process's rows of one shuffled batch after another, for ever."""
    rng = np.random.default_rng(_SEED)
    size = examples.batch_size
    own = slice(process * size // processes, (process + 1) * size // processes)
    while True:
        order = rng.permutation(len(examples.labels))
        for first in range(0, examples.steps_per_epoch * size, size):
            rows = order[first : first + size][own]
            yield examples.images[rows], examples.labels[rows]


def train(given: argparse.Namespace) -> dict[str, Any]:
    """Trains as one of the processes; returns the figures."""
    jax.config.update("jax_num_cpu_devices", given.devices)
    if given.processes > 1:
        jax.distributed.initialize(
            given.coordinator, given.processes, given.process, cluster_detection_method="deactivate"
        )
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("batch",), ()))
    task = TASKS[given.model]
    examples = read(given.data_file, task.batch_size)
    put = functools.partial(jax.make_array_from_process_local_data, whole)
    state = jax.tree.map(lambda value: put(value, value.shape), initial(NETWORKS[given.model]))

    def placed() -> Iterator[tuple[jax.Array, jax.Array]]:
        for images, labels in batches(examples, given.process, given.processes):
            shapes = (task.batch_size, *images.shape[1:]), (task.batch_size,)
            yield tuple(  # type: ignore[misc]
                jax.make_array_from_process_local_data(split, array, shape)
                for array, shape in zip((images, labels), shapes, strict=True)
            )

    feed = placed()
    step = make_step(NETWORKS[given.model], task.learning_rate, whole).lower(state, *next(feed)).compile()
    loss = None
    for _ in range(given.warmup_steps):
        state, loss = step(state, *next(feed))
    jax.block_until_ready((state, loss))
    wall = time.perf_counter()
    cpu = time.process_time()
    losses = []
    for _ in range(given.steps):
        state, loss = step(state, *next(feed))
        losses.append(loss)
    jax.block_until_ready((state, losses))
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    reduced = re.findall(r" all-reduce(?:-start)?\(([^)]*)\)", step.as_text())
    return {
        "steps_per_second": given.steps / wall,
        "steps": given.steps,
        "cpu_ms_per_step": 1e3 * cpu / given.steps,
        "all_reduces": len(reduced),
        "reduced_arrays": sum(arrays.count("%") for arrays in reduced),
        "final_loss": float(np.mean([np.asarray(one) for one in losses])),
        "devices": len(jax.devices()),
    }


def main() -> None:
    """Trains, and prints process 0's figures as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(NETWORKS), default="mlp")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="which one this is, from 0")
    parser.add_argument("--coordinator", help="host:port of process 0")
    parser.add_argument("--devices", type=int, default=1, help="virtual devices of this process")
    parser.add_argument("--steps", type=int, default=200, help="that are measured")
    parser.add_argument("--warmup-steps", type=int, default=20, help="before these")
    parser.add_argument("--data-file", type=Path, required=True, help="examples that `benchmarks.data.save` wrote")
    given = parser.parse_args()
    figures = train(given)
    if given.process == 0:
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
