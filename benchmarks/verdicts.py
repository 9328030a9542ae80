"""Measures what a verdict of `meshproof` costs beside the steps that it judges, in CPU seconds.

    python -m benchmarks.verdicts

A verdict, and the five steps of training on the mesh and on one device that it begins with, each have a process of
their own with two virtual CPU devices, and compile what they need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.foreign.trainer import Made

LARGE = "mlp of 10 million weights"
STEPS = ("optax: lion", "keras: stateless", "jax: megatron", LARGE)
TRAINED = 5
WIDTH, LAYERS, CLASSES, POSITIONS = 1600, 4, 4, 16


def made(name: str) -> Made:
    import jax
    import numpy as np

    from tests.foreign import hands, nets, trainer

    if name in hands.HANDS:
        return hands.make(hands.HANDS[name](), 2)
    if name in nets.NETS:
        return trainer.make(nets.NETS[name](), 2)
    rng = np.random.default_rng(0)
    widths = [*[WIDTH] * (LAYERS + 1), CLASSES]
    weights = [(rng.normal(size=size) / size[0] ** 0.5).astype(np.float32) for size in pairwise(widths)]

    def apply(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in weights[:-1]:
            x = jax.nn.relu(x @ kernel)
        return (x @ weights[-1]).mean(1)

    return trainer.make(
        trainer.Net(nets.of_module(apply, "x", nets.cross_entropy), weights, nets.rows(POSITIONS, WIDTH)), 2
    )


def train(case: Made) -> None:
    import jax

    one = partial(jax.device_put, device=jax.local_devices()[0])
    for step, place, place_batch in ((case.step, case.place, case.place_batch), (case.reference, one, one)):
        state, batch = place(case.state), place_batch(case.batches[0])
        for _ in range(TRAINED):
            state, _ = step(state, batch)
        jax.block_until_ready(state)


def judge(case: Made) -> None:
    from runner.verify import meshproof

    report = meshproof.compare(
        case.step, case.reference, case.state, case.batches, place=case.place, place_batch=case.place_batch
    )
    assert report.verdict == "verified", report


def seconds(name: str, work: Callable[[Made], None], times: int) -> list[float]:
    """Returns the CPU seconds that this process needs for work, the first time and later."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    case, found = made(name), []
    for _ in range(times):
        began = time.process_time()
        work(case)
        found.append(time.process_time() - began)
    return found


def in_a_process(name: str, work: str, times: int) -> list[float]:
    program = f"from benchmarks.verdicts import *; print(json.dumps(seconds({name!r}, {work}, {times})))"
    place = os.environ | {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", program], env=place, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    print("| step | five steps of both sides | the same again, compiled | a verdict | over the five steps |")
    print("|---|---|---|---|---|")
    for name in STEPS:
        first, again = in_a_process(name, "train", 2)
        (verdict,) = in_a_process(name, "judge", 1)
        print(f"| {name} | {first:.1f} s | {again:.3f} s | {verdict:.1f} s | {verdict / first:.1f} |", flush=True)


if __name__ == "__main__":
    main()
