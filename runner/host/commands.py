"""The commands that there are, and what `--version` prints. Imports nothing that takes time."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import runner

COMMANDS = {  # module -> what it does; `python -m` runs it
    "runner": "trains, sweeps with -m, goes on with resume=latest",
    "runner.plan": "what a run would hold, move and compute",
    "runner.verify": "holds a mesh against one device",
    "runner.evaluate": "evaluates a checkpoint, run=latest",
    "runner.export": "writes a run's model as a SavedModel, run=latest",
    "runner.compare": "recorded runs side by side",
    "runner.runs": "recorded runs, their checkpoints and sizes; clean frees the disk",
    "runner.data": "fetches, prepares and shows a dataset",
    "runner.init": "writes a project of one's own, which runs at once",
}
_SHOWN = (
    "tensorflow",
    "tf-keras",
    "keras",
    "jax",
    "jaxlib",
    "tensorflow-datasets",
    "numpy",
    "hydra-core",
    "omegaconf",
    "mlflow",
    "optuna",
    "safetensors",
    "grain",
)
_MISSING = "not installed"


def command_module() -> str:
    """Returns the module of the command that this process runs, as `runner` or `runner.plan`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else "runner"
    return name if name.split(".")[0] == "runner" else "runner"


def listed() -> str:
    """Returns the commands, a line each."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  python -m {name:{width}}  {what}" for name, what in COMMANDS.items())


def print_versions() -> int:
    """Prints the versions of this package, of Python and of the libraries.

    Returns:
      The process's exit code.
    """
    found = {"runner": runner.__version__, "python": platform.python_version()}
    for name in _SHOWN:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = _MISSING
    width = max(map(len, found))
    print("\n".join(f"{name:{width}}  {number}" for name, number in found.items()))
    return 0
