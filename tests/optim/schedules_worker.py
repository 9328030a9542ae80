"""Prints which of verify's schedules are not Keras's own, and which differ from the runner's formulas."""

import json

import keras
import numpy as np

from runner.config.schema import OptimizerConfig, ScheduleConfig
from runner.engine.optim.schedules import learning_rate
from runner.verify import stock

STEPS = 50
SCHEDULES = {
    "cosine": ScheduleConfig("cosine", final_factor=0.1),
    "cosine after a warm-up": ScheduleConfig("cosine", warmup_steps=7, initial_factor=0.25, decay_steps=20),
    "linear": ScheduleConfig("linear", final_factor=0.1),
    "linear after a warm-up": ScheduleConfig("linear", warmup_steps=7, initial_factor=0.25),
    "polynomial": ScheduleConfig("polynomial", decay_steps=20, power=2.0),
    "exponential": ScheduleConfig("exponential", decay_steps=10, decay_rate=0.5, staircase=True),
    "piecewise": ScheduleConfig("piecewise", boundaries=[10, 30], factors=[0.5, 1.0, 0.1]),
}


def main() -> None:
    tabulated = []
    differing = []
    for name, schedule in SCHEDULES.items():
        config = OptimizerConfig(learning_rate=0.05, schedule=schedule)
        made = stock.keras_schedule(config, STEPS, keras)
        if type(made).__module__ == stock.__name__:
            tabulated.append(name)
        # A comparison may take more steps than the run.
        steps = range(STEPS + 5)
        found = [float(made(step)) for step in steps]
        # Keras computes in float32.
        if not np.allclose(found, [learning_rate(config, step, STEPS) for step in steps], rtol=1e-5, atol=1e-8):
            differing.append(name)
    print(json.dumps({"tabulated": tabulated, "differing": differing}))


if __name__ == "__main__":
    main()
