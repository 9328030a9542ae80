"""Runs of Keras's optimizers that tests compare with stock Keras, and the subprocess that makes them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests import forks

ROOT = Path(__file__).parents[2]
# Rates at which the loss falls within a few steps; the others are at 0.01. At that rate, Adam and RMSprop make whole
# steps of gradients that are rounding and nothing else.
RATES = {"Adadelta": 1.0, "Adagrad": 0.05, "Ftrl": 0.1, "SGD": 0.02}
RATES |= dict.fromkeys(("Adam", "AdamW", "Adamax", "Lion", "Nadam", "RMSprop"), 0.001)
_COSINE = {"optimizer.schedule.name": "cosine", "optimizer.schedule.warmup_steps": 4}
# Every class, with options that are not its defaults; and what our keys add to a class.
RUNS: list[dict[str, Any]] = [
    {"class_name": "Adadelta", "options": {"rho": 0.9, "weight_decay": 0.01}},
    {"class_name": "Adafactor", "options": {"weight_decay": 0.01}},
    {"name": "Adafactor_cosine", "class_name": "Adafactor", "keys": {**_COSINE, "optimizer.clip.global_norm": 0.5}},
    {"class_name": "Adagrad", "options": {"initial_accumulator_value": 0.2}},
    {"class_name": "Adam", "options": {"amsgrad": True}, "keys": {"optimizer.ema.decay": 0.9}},
    {"class_name": "AdamW", "options": {"beta_1": 0.8}},
    {"class_name": "Adamax", "options": {"beta_2": 0.99}},
    {"class_name": "Ftrl", "options": {"l1_regularization_strength": 1e-4, "beta": 0.1}},
    {"class_name": "Lamb", "options": {"weight_decay": 0.01}, "keys": _COSINE},
    {"class_name": "Lion", "options": {"beta_1": 0.95, "weight_decay": 0.1}, "keys": {"optimizer.clip.norm": 1.0}},
    {"class_name": "Muon", "options": {"exclude_layers": ["d3"]}, "keys": {"optimizer.clip.value": 0.1}},
    {"class_name": "Nadam", "keys": _COSINE},
    {"class_name": "RMSprop", "options": {"centered": True, "momentum": 0.5, "epsilon": 1e-4}},
    {"class_name": "SGD", "options": {"momentum": 0.9, "nesterov": True}},
    {"class_name": "ScheduleFreeAdamW", "options": {"warmup_steps": 3}},
]

# A factor of the rate, no decay of biases, and a layer that is frozen in the first steps. The norm that clips is that
# of all variables but the frozen ones.
_GROUPS = [
    {"match": "biases_and_norms", "decay": False},
    {"match": "d1/.*", "rate": 0.1},
    {"match": "d2/.*", "freeze_steps": 2},
]
_ADAMW = {
    "name": "adamw",
    "learning_rate": 0.001,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epsilon": 1e-7,
    "weight_decay": 1.0,
}
GROUPED: list[dict[str, Any]] = [
    {
        "name": "adamw",
        "optimizer": {**_ADAMW, "groups": _GROUPS, "clip": {"global_norm": 0.5}},
        "keys": _COSINE,
    },
    {
        "class_name": "Lion",
        "rate": 0.001,
        "options": {"weight_decay": 1.0, "groups": _GROUPS, "clip": {"global_norm": 0.5}},
        "keys": _COSINE,
    },
]


def named(run: dict[str, Any]) -> str:
    """Returns the name of a run."""
    return str(run.get("name") or run["class_name"])


def work(runs: list[dict[str, Any]], steps: int, engine: str = "jax") -> Any:
    """Runs the worker and returns what it prints: run -> see `keras_worker.compared`."""
    with_rates = [{"rate": RATES.get(run.get("class_name", ""), 0.01), **run} for run in runs]
    request = {"engine": engine, "steps": steps, "runs": with_rates}
    command = [sys.executable, "-m", "tests.optim.keras_worker", json.dumps(request)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    library = "jax" if engine == "jax" else "tensorflow"
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
