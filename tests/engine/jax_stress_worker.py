"""Trains thousands of steps on eight virtual devices and waits for none itself; prints the steps and the last loss.

Usage: python -m tests.engine.jax_stress_worker STEPS LOOP, with LOOP `host` or `device`.
"""

from __future__ import annotations

import sys

import numpy as np

from runner.engine import make_engine
from tests.configs import with_keys
from tests.engine import cases

_BATCH = 16
_STEPS_PER_CALL = 20
_CALLS_IN_FLIGHT = 50


def main() -> None:
    """Starts call after call, then evaluations and gradients, and reads no loss until many calls were started."""
    steps = int(sys.argv[1])
    config = cases.config({"batch": 8}, hidden=[32])
    config = with_keys(config, {"engine.name": "jax", "engine.loop": sys.argv[2], "dataset.batch_size": _BATCH})
    engine = make_engine(config, cases.data(), steps)
    engine.build()
    batches = cases.batches(_STEPS_PER_CALL, _BATCH)
    placed = engine.place(batches)
    pairs = zip(batches.arrays["image"], batches.arrays["label"], strict=True)
    evaluated = [cases.stack(images[None], labels[None]) for images, labels in pairs]
    done = 0
    pending = []
    while done < steps:
        pending.append(engine.train_steps(placed, done))
        done += _STEPS_PER_CALL
        if len(pending) == _CALLS_IN_FLIGHT:
            # Programs of another kind start while the last of the calls runs.
            engine.evaluate(evaluated)
            engine.gradients(batches, done)
            losses = [each.read().sums["loss"] / _BATCH for each in pending]
            pending.clear()
    losses = [each.read().sums["loss"] / _BATCH for each in pending] or losses
    print(done, np.concatenate(losses)[-_STEPS_PER_CALL:].mean())


if __name__ == "__main__":
    main()
