"""Runs of the real commands, in processes of their own."""

import os
import subprocess
from pathlib import Path

from tests import forks

# Replaces the finder of installed packages as Python starts, and says in the end which heavy ones were loaded.
_HIDES_PACKAGES = """
import atexit, os, sys
from importlib.machinery import PathFinder

class Blocker:
    def find_spec(name, path=None, target=None):
        hidden = os.environ["BLOCKED"].split(",")
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Blocker if finder is PathFinder else finder for finder in sys.meta_path]
HEAVY = ("tensorflow", "tf_keras", "jax", "keras", "mlflow", "torch")
atexit.register(lambda: print("loaded:", ",".join(name for name in HEAVY if name in sys.modules)))
"""


def ran(
    folder: Path, module: str, *words: str, library: str | None = None, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m MODULE WORDS` in a folder to its end and checks the exit code.

    Args:
      folder: is made if need be. Modules in it are found.
      module: of the command.
      words: its arguments.
      library: see `forks.Popen`.
      code: the exit code.
      variables: of the environment, beside those of this process.
    """
    folder.mkdir(exist_ok=True)
    variables = {"PYTHONPATH": f"{folder}{os.pathsep}{forks.ROOT}"} | variables
    return forks.python("-m", module, *words, folder=folder, code=code, library=library, timeout=1800, **variables)


def without_packages(folder: Path, *names: str) -> dict[str, str]:
    """Returns variables of the environment of programs in which packages can't be found, as if not installed.

    Nothing may be forked where they are set: see `forks.REAL`.
    """
    (folder / "sitecustomize.py").write_text(_HIDES_PACKAGES)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{forks.ROOT}", "BLOCKED": ",".join(names)}
