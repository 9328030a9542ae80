"""Trains thousands of steps on eight virtual devices without waiting for any; prints the steps and the last loss.

Usage: python -m tests.engine.jax_stress_worker STEPS LOOP, with LOOP `host` or `device`.
"""

from __future__ import annotations

import sys

import numpy as np

from runner.engine import make_engine
from runner.engine.base import DataSpec
from tests.engine import cases

_BATCH, _STEPS_A_CALL, _CALLS_IN_FLIGHT = 16, 20, 50


def main() -> None:
    """Keeps many calls in flight, as nothing but the read of a loss waits."""
    steps, loop = int(sys.argv[1]), sys.argv[2]
    config = cases.config({"batch": 8}, hidden=[32])
    config.engine.name, config.engine.loop, config.dataset.batch_size = "jax", loop, _BATCH
    engine = make_engine(config, DataSpec(cases.INPUT_SHAPE, cases.CLASSES), steps)
    engine.build()
    placed = engine.place(cases.batches(_STEPS_A_CALL, _BATCH))
    done, pending = 0, []
    while done < steps:
        pending.append(engine.train_steps(placed, done))
        done += _STEPS_A_CALL
        if len(pending) == _CALLS_IN_FLIGHT:
            losses = [each.read().loss for each in pending]
            pending.clear()
    losses = [each.read().loss for each in pending] or losses
    print(done, np.concatenate(losses)[-_STEPS_A_CALL:].mean())


if __name__ == "__main__":
    main()
