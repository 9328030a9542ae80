"""Trains thousands of steps on eight virtual devices and waits for none itself; prints the steps and the last loss.

Usage: python -m tests.engine.jax_stress_worker STEPS LOOP, with LOOP `host` or `device`.
"""

from __future__ import annotations

import sys

import numpy as np

from runner.engine import make_engine
from tests.configs import with_keys
from tests.engine import cases

_BATCH, _STEPS_A_CALL, _CALLS_IN_FLIGHT = 16, 20, 50


def main() -> None:
    """Asks for call after call, for evaluations and gradients right behind, and reads no loss until many were made."""
    steps, loop = int(sys.argv[1]), sys.argv[2]
    config = cases.config({"batch": 8}, hidden=[32])
    config = with_keys(config, {"engine.name": "jax", "engine.loop": loop, "dataset.batch_size": _BATCH})
    engine = make_engine(config, cases.data(), steps)
    engine.build()
    batches = cases.batches(_STEPS_A_CALL, _BATCH)
    placed = engine.place(batches)
    pairs = zip(batches.arrays["image"], batches.arrays["label"], strict=True)
    evaluated = [cases.stack(images[None], labels[None]) for images, labels in pairs]
    done, pending = 0, []
    while done < steps:
        pending.append(engine.train_steps(placed, done))
        done += _STEPS_A_CALL
        if len(pending) == _CALLS_IN_FLIGHT:
            engine.evaluate(evaluated)  # its programs start while the last of these runs
            engine.gradients(batches, done)
            losses = [each.read().sums["loss"] / _BATCH for each in pending]
            pending.clear()
    losses = [each.read().sums["loss"] / _BATCH for each in pending] or losses
    print(done, np.concatenate(losses)[-_STEPS_A_CALL:].mean())


if __name__ == "__main__":
    main()
