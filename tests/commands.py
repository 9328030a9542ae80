"""Runs of the real commands, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
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
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{forks.ROOT}"} | variables
    command = [sys.executable, "-m", module, *words]
    done = forks.run(command, library=library, cwd=folder, env=environment, timeout=1800)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done
