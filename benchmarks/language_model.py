"""Training steps of a small language model: the engine `jax` beside its peers, in one process and in turns.

    python -m benchmarks.language_model                # one device: 4 layers of 128 on 16 x 128 tokens
    python -m benchmarks.language_model --devices 8    # 8 virtual devices: 2 layers of 64 on 16 x 32 tokens

The network is GPT-2's with 256 tokens in its vocabulary, in float32, trained by Adam on the same tokens:

- ours: `model=gpt engine=jax`, its steps in calls of several;
- fit: Keras's `fit` on JAX, of Keras's own layers, over arrays in memory; on several devices under
  `keras.distribution.DataParallel` and `ModelParallel`, which splits as Megatron-LM does;
- plain: a loop in JAX alone, one jitted step a call with its state donated.

Each contender runs a few steps at a time, in an order drawn again, so that a busy spell of the machine hits all alike.
Rates are medians over the turns; beside them stands the processors' time of a step, which others' work changes less.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if __package__ in (None, ""):  # started by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runner.config.schema import LayoutConfig, MeshConfig, ModelConfig, OptimizerConfig, RuleConfig, RunConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.engine import make_engine, registry
from runner.engine.base import HostBatches
from runner.host.late import late
from runner.task.base import DataSpec
from runner.task.registry import make_task
from tests.configs import with_keys

plain_gpt = late("benchmarks.plain_gpt")  # with JAX, for which `--help` does not wait, nor a test of the pages

RATE = 1e-3
SEED = 0
VOCABULARY = 256
HEADS = 4
Turn = Callable[[int], float]  # steps -> the last loss; waits for the devices

# Of our names and of those that the model for `fit` has.
MEGATRON = {
    r"token_embedding/embeddings": ("model", None),
    r".*attention/(query|key|value)/kernel": (None, "model", None),
    r".*attention/(query|key|value)/bias": ("model", None),
    r".*attention/(attention_)?output/kernel": ("model", None, None),
    r".*[./]up/kernel": (None, "model"),
    r".*[./]up/bias": ("model",),
    r".*[./]down/kernel": ("model", None),
    r"head/kernel": (None, "model"),
}


@dataclass(frozen=True)
class Size:
    """What is trained.

    Attributes:
      layers: blocks.
      dim: width of a token; hidden units are four times as many.
      batch: rows of a step, over all devices.
      tokens: of a row.
    """

    layers: int
    dim: int
    batch: int
    tokens: int


SIZES = {1: Size(4, 128, 16, 128), 8: Size(2, 64, 16, 32)}


def rows(size: Size, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and the next ones, int32 (count, T)."""
    drawn = np.random.default_rng(SEED).integers(0, VOCABULARY, (count, size.tokens + 1)).astype(np.int32)
    drawn[:, 1::2] = (drawn[:, :-1:2] * 5 + 1) % VOCABULARY
    return drawn[:, :-1].copy(), drawn[:, 1:].copy()


def ours(size: Size, axes: Mapping[str, int], **options: Any) -> Turn:
    """Returns the runner's engine as a turn; it gets the batches of a call at once."""
    arrays = {name: ArraySpec((size.tokens,), "int32", ("sequence",)) for name in ("tokens", "label")}
    task = TaskConfig("language_model", ["label"], options={"vocabulary": VOCABULARY})
    rules = [RuleConfig(match, list(spec), optional=True) for match, spec in MEGATRON.items() if "model" in axes]
    optimizer = OptimizerConfig("adam", RATE, beta_1=0.9, beta_2=0.999, epsilon=1e-7)
    config = RunConfig(mesh=MeshConfig(axes=dict(axes)), layout=LayoutConfig(rules=rules), optimizer=optimizer)
    sizes = {"dim": size.dim, "depth": size.layers, "heads": HEADS}
    config = with_keys(
        config,
        {
            "model": ModelConfig("runner.model.gpt.build", sizes | options),
            "task": task,
            "engine.name": "jax",
            "dataset.batch_size": size.batch,
        },
    )
    data = DataSpec(arrays, make_task(task, arrays))
    engine = make_engine(config, data, 1_000_000)
    engine.build()
    done = 0

    def turn(steps: int) -> float:
        nonlocal done
        tokens, label = (each.reshape(steps, size.batch, -1) for each in rows(size, steps * size.batch))
        weight = np.ones((steps, size.batch), np.float32)
        held = {"tokens": tokens, "label": label, WEIGHT: weight}
        counted = np.asarray(data.task.weights(held), np.float32)
        read = engine.train_steps(engine.place(HostBatches(held, counted, steps)), done).read()
        done += steps
        return float(read.sums["loss"][-1] / read.weight[-1])

    return turn


def fit(size: Size, distribution: Any = None) -> Turn:
    """Returns Keras's `fit` of Keras's own layers as a turn."""
    import keras

    def scope() -> Any:
        return nullcontext() if distribution is None else distribution.scope()

    with scope():
        keras.utils.set_random_seed(SEED)
        layers = keras.layers
        gelu = functools.partial(keras.activations.gelu, approximate=True)
        taken = keras.Input((size.tokens,), dtype="int32")
        x = layers.Embedding(VOCABULARY, size.dim, name="token_embedding")(taken)
        x = _positions(keras)(name="position_embedding")(x)
        for index in range(size.layers):
            name = f"block_{index}"
            y = layers.LayerNormalization(epsilon=1e-5)(x)
            mha = layers.MultiHeadAttention(HEADS, size.dim // HEADS, name=f"{name}.attention")
            x = x + mha(y, y, use_causal_mask=True)
            y = layers.LayerNormalization(epsilon=1e-5)(x)
            y = layers.Dense(4 * size.dim, activation=gelu, name=f"{name}.up")(y)
            x = x + layers.Dense(size.dim, name=f"{name}.down")(y)
        x = layers.LayerNormalization(epsilon=1e-5)(x)
        model = keras.Model(taken, layers.Dense(VOCABULARY, use_bias=False, name="head")(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss)

    def turn(steps: int) -> float:
        with scope():
            x, y = rows(size, steps * size.batch)
            history = model.fit(x, y, batch_size=size.batch, epochs=1, shuffle=False, verbose=0)
            return float(history.history["loss"][-1])

    return turn


def _positions(keras: Any) -> Any:
    class Positions(keras.layers.Layer):  # type: ignore[misc]
        """Adds a learned vector to each place."""

        def build(self, shape: Any) -> None:
            self.embeddings = self.add_weight(shape=tuple(shape[1:]), initializer="uniform", name="embeddings")

        def call(self, x: Any) -> Any:
            return x + self.embeddings

    return Positions


def model_parallel() -> Any:
    """Returns Keras's distribution over 4 x 2 devices, weights split as Megatron-LM does."""
    import keras

    mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), keras.distribution.list_devices())
    layout = keras.distribution.LayoutMap(mesh)
    for match, spec in MEGATRON.items():
        layout[match] = spec
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def contenders(devices: int) -> Iterator[tuple[str, Callable[[], Turn]]]:
    """Yields the names of the contenders and what makes each."""
    size = SIZES[devices]
    if devices == 1:
        yield "ours", lambda: ours(size, {"batch": 1})
        yield "ours, scan", lambda: ours(size, {"batch": 1}, scan=True)
        yield "fit", lambda: fit(size)
        yield "plain loop", lambda: plain_gpt.PlainGpt(size, VOCABULARY, HEADS, RATE).turn(rows)
        return
    yield "ours, batch8", lambda: ours(size, {"batch": 8})
    yield "ours, batch4_model2", lambda: ours(size, {"batch": 4, "model": 2})
    yield "fit, DataParallel", lambda: fit(size, _data_parallel())
    yield "fit, ModelParallel", lambda: fit(size, model_parallel())
    yield "plain loop, batch8", lambda: plain_gpt.PlainGpt(size, VOCABULARY, HEADS, RATE, devices).turn(rows)


def _data_parallel() -> Any:
    import keras

    return keras.distribution.DataParallel()


def measure(turns: Mapping[str, Turn], repeats: int, steps: int) -> dict[str, dict[str, float]]:
    """Runs each contender `repeats` times for so many steps, in turns, and returns its medians."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    spent: dict[str, list[float]] = {name: [] for name in turns}
    losses: dict[str, float] = {}
    order = list(turns)
    for _ in range(repeats):
        random.shuffle(order)
        for name in order:
            wall = time.perf_counter()
            cpu = time.process_time()
            losses[name] = turns[name](steps)
            rates[name].append(steps / (time.perf_counter() - wall))
            spent[name].append(1e3 * (time.process_time() - cpu) / steps)
    return {
        name: {
            "steps_per_second": statistics.median(rates[name]),
            "cpu_ms_per_step": statistics.median(spent[name]),
            "least_cpu_ms_per_step": min(spent[name]),
            "loss": losses[name],
        }
        for name in turns
    }


def main(argv: list[str] | None = None) -> int:
    """Prints a table, and writes the figures as JSON where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, choices=tuple(SIZES), default=1, help="virtual devices of the CPU")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contender")
    parser.add_argument("--steps", type=int, default=0, help="of a turn; 0: 4 on one device, 40 on eight")
    parser.add_argument("--only", default="", help="contenders whose names hold one of these, separated by commas")
    parser.add_argument("--out", type=Path, help="the JSON file")
    arguments = parser.parse_args(argv)
    config = RunConfig(mesh=MeshConfig(axes={"batch": arguments.devices}))
    config = with_keys(config, {"engine.name": "jax"})
    if arguments.devices > 1:  # `fit` has several programs on the way, which hold a thread a device each; ours has one
        os.environ.setdefault("PJRT_NPROC", str(4 * arguments.devices))
    registry.prepare(config)  # sets the environment that JAX begins with
    from runner.engine.jax import devices

    devices.make_mesh(config.mesh)
    steps = arguments.steps or {1: 4, 8: 40}[arguments.devices]
    wanted = arguments.only.split(",")
    turns = {}
    for name, make in contenders(arguments.devices):
        if any(each in name for each in wanted):
            turns[name] = make()
            turns[name](steps)  # compiles
            turns[name](steps)
    found = measure(turns, arguments.repeats, steps)
    best = max(each["steps_per_second"] for each in found.values())
    size = SIZES[arguments.devices]
    print(f"{arguments.devices} device(s), {size}, medians of {arguments.repeats} turns of {steps} steps")
    print(f"{'contender':22} {'steps/s':>9} {'of best':>8} {'CPU ms/step':>12} {'least':>8} {'loss':>7}")
    for name, each in sorted(found.items(), key=lambda item: -item[1]["steps_per_second"]):
        print(
            f"{name:22} {each['steps_per_second']:9.2f} {each['steps_per_second'] / best:8.0%} "
            f"{each['cpu_ms_per_step']:12.1f} {each['least_cpu_ms_per_step']:8.1f} {each['loss']:7.3f}"
        )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
