"""The sides as child processes, one after the other: virtual devices can't change within a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Required, TypedDict

from runner.config.errors import ConfigError, EngineError

WORKER = "runner.verify.worker"


class Outcome(TypedDict, total=False):
    """What a side says when it ends.

    Attributes:
      kind: `done`, `refused` or `failed`.
      text: why it was refused or failed.
      terms: of the single device: length of the longest sum.
      noise: of the single device: relative, of its perturbed runs.
      precision: of the single device: the lowest that it computes in.
    """

    kind: Required[str]
    text: str
    terms: int
    noise: float
    precision: str


def run_child(side: str, folder: Path, log: Path, worker: str = WORKER) -> Outcome:
    """Runs one side to its end.

    Args:
      side: `reference`, `mesh`, `against` or `again`.
      folder: holds the request, and gets the side's arrays.
      log: gets what the process and its libraries print.
      worker: module that is run; its main does what `runner.verify.worker`'s does.

    Returns:
      What the side said when it was done.

    Raises:
      ConfigError: the side refused the config.
      EngineError: it failed, or its process ended without a word.
    """
    command = [sys.executable, "-m", worker, side, str(folder)]
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        with child:
            try:
                child.wait()  # its stdin stays open: the child ends where this process does
            except BaseException:
                child.kill()
                raise
    said = folder / f"{side}.json"
    if not said.exists():
        how = f"was killed by signal {-child.returncode}" if child.returncode < 0 else f"exited {child.returncode}"
        raise EngineError(f"verify's {side} process {how}; its output is in {log}")
    outcome: Outcome = json.loads(said.read_text())
    if outcome["kind"] == "refused":
        raise ConfigError(outcome["text"])
    if outcome["kind"] == "failed":
        raise EngineError(f"{outcome['text']} (verify's {side} process; its output is in {log})")
    return outcome
