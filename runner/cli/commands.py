"""The list of commands, `--version`, and commands without a config. Imports nothing that takes time."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files

from runner.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, ConfigError, TrackingError
from runner.host.libraries import installed

# Distributions whose versions a bug report needs.
_REPORTED = (
    *("tensorflow", "tf-keras", "keras", "jax", "jaxlib", "tensorflow-datasets", "numpy"),
    *("hydra-core", "omegaconf", "mlflow", "optuna", "safetensors"),
)
TRAIN = "train"  # what `runner` does without a command


def commands() -> dict[str, tuple[str, list[str]]]:
    """Returns what each command does, and lines that show it, by the command's name."""
    found = {}
    for block in files(__package__).joinpath("help.txt").read_text("utf-8").strip().split("\n\n"):
        head, *examples = block.splitlines()
        name, _, does = head.partition(": ")
        found[name] = (does, examples)
    return found


def run(module: str, arguments: Sequence[str]) -> int:
    """Runs `main(arguments)` of a module, a command without a config, and prints its errors; returns the exit code."""
    try:
        code: int = import_module(module).main(arguments)
    except (ConfigError, TrackingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED if isinstance(error, ConfigError) else EXIT_FAILED
    return code


def print_versions() -> int:
    """Prints the versions of this package, of Python and of the libraries; returns the process's exit code."""
    versions = installed(["runner"]) | {"python": platform.python_version()}
    versions |= dict.fromkeys(_REPORTED, "not installed") | installed(_REPORTED)
    width = max(map(len, versions))
    for name, number in versions.items():
        print(f"{name:{width}}  {number}")
    return EXIT_DONE
