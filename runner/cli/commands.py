"""The list of commands, and `--version`. Imports nothing that takes time."""

from __future__ import annotations

import platform

from runner.host.libraries import installed

# Distributions whose versions a bug report needs.
_REPORTED = (
    *("tensorflow", "tf-keras", "keras", "jax", "jaxlib", "tensorflow-datasets", "numpy"),
    *("hydra-core", "omegaconf", "mlflow", "optuna", "safetensors"),
)
# Module to description; `python -m` runs the module.
COMMANDS = {
    "runner": "trains; -m runs a sweep; resume=latest resumes a run",
    "runner.supervise": "starts a command again when its run is lost: python -m runner.supervise -- <command>",
    "runner.plan": "shows memory, communication and FLOPs of a run before it starts",
    "runner.advise": "ranks meshes and layouts for a model and a number of devices, devices=64 hardware=h100",
    "runner.verify": "compares a mesh with one device",
    "runner.evaluate": "evaluates a checkpoint, run=latest",
    "runner.generate": "continues a prompt with a run's language model, run=latest prompt=...",
    "runner.export": "writes a run's model as a SavedModel, run=latest",
    "runner.runs": "lists recorded runs; compare shows them side by side; clean frees disk space",
    "runner.data": "downloads, prepares and shows a dataset",
    "runner.init": "creates a project with your own model and options, ready to run",
}


def listed() -> str:
    """Returns the commands with their descriptions, one per line."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  python -m {name:{width}}  {description}" for name, description in COMMANDS.items())


def print_versions() -> int:
    """Prints the versions of this package, of Python and of the libraries; returns the process's exit code."""
    versions = installed(["runner"]) | {"python": platform.python_version()}
    versions |= dict.fromkeys(_REPORTED, "not installed") | installed(_REPORTED)
    width = max(map(len, versions))
    for name, number in versions.items():
        print(f"{name:{width}}  {number}")
    return 0
