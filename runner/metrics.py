"""The metrics that runs log, by name: one table for what a key may name. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from collections.abc import Mapping

MAXIMIZE, MINIMIZE = "maximize", "minimize"
DIRECTIONS = (MAXIMIZE, MINIMIZE)

# Each with its better direction; None: neither is.
LOGGED: Mapping[str, str | None] = {
    "eval/accuracy": MAXIMIZE,
    "eval/loss": MINIMIZE,
    "train/accuracy": MAXIMIZE,
    "train/loss": MINIMIZE,
    "learning_rate": None,
    "throughput/examples_per_second": MAXIMIZE,
    "throughput/step_ms": MINIMIZE,
    "throughput/model_flop_utilisation": MAXIMIZE,
    "plan/bytes_per_device": MINIMIZE,
    "plan/collective_bytes": MINIMIZE,
    "plan/flops_per_device": MINIMIZE,
}
EVALUATED = tuple(name for name in LOGGED if name.startswith("eval/"))
