"""Runs of the real commands, in processes of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import forks


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
