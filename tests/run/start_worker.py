"""Runs a training command and prints what its start cost, by counts: `python -m tests.run.start_worker OVERRIDES`.

The last line is JSON: `composed`, how often the config was composed, `listed`, how often all installed packages were
listed, and `imported`, the packages among `HEAVY` that were loaded when the command ended.
"""

from __future__ import annotations

import json
import sys

import importlib_metadata
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from runner.__main__ import main

HEAVY = ("jax", "keras", "matplotlib", "mlflow", "sklearn", "tensorflow", "tf_keras")


def run() -> None:
    """Runs the command."""
    counts = {"composed": 0, "listed": 0}
    load = ConfigLoaderImpl.load_configuration
    packages = importlib_metadata.packages_distributions

    def counted_load(*arguments: object, **options: object) -> object:
        counts["composed"] += 1
        return load(*arguments, **options)

    def counted_packages() -> object:
        counts["listed"] += 1
        return packages()

    ConfigLoaderImpl.load_configuration = counted_load
    importlib_metadata.packages_distributions = counted_packages
    try:
        main()
    finally:
        imported = [name for name in HEAVY if name in sys.modules]
        print(json.dumps(counts | {"imported": imported}))


if __name__ == "__main__":
    run()
