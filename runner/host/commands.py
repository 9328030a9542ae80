"""The list of commands. Imports nothing that takes time."""

from __future__ import annotations

import sys

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


def command_module(otherwise: str = "runner") -> str:
    """Returns the module of this process's command, such as `runner.plan`; `otherwise` for a user's program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else "runner"
    return name if name.split(".")[0] == "runner" else otherwise


def listed() -> str:
    """Returns the commands with their descriptions, one per line."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  python -m {name:{width}}  {description}" for name, description in COMMANDS.items())
