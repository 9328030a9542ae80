"""Runs `python -m runner` with the options given, and then prints the peak memory of its first device.

    python -m benchmarks.device_memory mesh=single mesh.device=gpu engine=jax model=gpt ...

The last line is `device memory: ` and a JSON object: `peak_bytes`, the most that was in use at one time since the
process began; `limit_bytes`, which JAX may use; the device's name; and JAX's version. JAX counts both on GPUs and TPUs
only.
"""

from __future__ import annotations

import json
import sys

from omegaconf import DictConfig

from runner.cli import entry, train
from runner.config.schema import RunConfig

LINE = "device memory: "


def run(config: RunConfig, composed: DictConfig) -> None:
    """Trains, and prints the line, also after a run that failed once JAX had made its devices."""
    try:
        train.run(config, composed)
    finally:
        _print_memory()


def _print_memory() -> None:
    jax = sys.modules.get("jax")
    if jax is None:
        return
    device = jax.local_devices()[0]
    counted = device.memory_stats() or {}
    figures = {
        "peak_bytes": counted.get("peak_bytes_in_use"),
        "limit_bytes": counted.get("bytes_limit"),
        "device": device.device_kind,
        "jax": jax.__version__,
    }
    print(LINE + json.dumps(figures), flush=True)


if __name__ == "__main__":
    entry.main("benchmarks.device_memory")
