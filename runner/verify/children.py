"""The sides as child processes: virtual devices can't change within a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Required, TypedDict

from runner.engine import registry
from runner.errors import ConfigError, EngineError
from runner.processes.place import Place

WORKER = "runner.verify.worker"
_POLL_S = 0.02

Child = subprocess.Popen[bytes]


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


def run_children(
    sides: Sequence[str],
    folder: Path,
    logs: Path,
    worker: str = WORKER,
    together: int = 1,
    places: Mapping[str, Place] = MappingProxyType({}),
) -> dict[str, Outcome]:
    """Runs sides to their ends, in their order; the first that fails ends the others.

    Args:
      sides: `reference`, `mesh`, `against` or `again`.
      folder: holds the request, and gets the sides' arrays.
      logs: folder; `verify-<side>.log` gets what a process and its libraries print.
      worker: module that is run; its main does what `runner.verify.worker`'s does.
      together: how many run at a time; one that needs another's arrays waits for them.
      places: of a side that computes in several processes, which of them this one's child is.

    Returns:
      What each side said when it was done, in the order of `sides`.

    Raises:
      ConfigError: a side refused the config.
      EngineError: one failed, or its process ended without a word.
    """
    waiting = list(sides)
    running = dict[str, Child]()
    said = dict[str, Outcome]()
    try:
        while waiting or running:
            while waiting and len(running) < together:
                side = waiting.pop(0)
                running[side] = _started(side, folder, logs, worker, places.get(side))
            for side in [side for side, child in running.items() if child.poll() is not None]:
                said[side] = _said(side, running.pop(side).returncode, folder, logs, places.get(side))
            time.sleep(_POLL_S)
    finally:
        for child in running.values():
            child.kill()
            child.wait()
    return {side: said[side] for side in sides}


def _started(side: str, folder: Path, logs: Path, worker: str, place: Place | None) -> Child:
    command = [sys.executable, "-m", worker, side, str(folder)]
    # This process may have prepared its own for an engine; each side prepares another.
    environment = {**registry.environment_for_children(), **(place.environment() if place else {})}
    with _log(logs, side).open("wb") as output:  # its stdin stays open: the child ends where this process does
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
        )


def outcome_file(side: str, place: Place | None) -> str:
    """Returns the name of the file in which a side says how it ended; each of several processes has its own."""
    return f"{side}.json" if place is None or not place.index else f"{side}-{place.index}.json"


def _log(logs: Path, side: str) -> Path:
    return logs / f"verify-{side}.log"


def _said(side: str, code: int, folder: Path, logs: Path, place: Place | None) -> Outcome:
    said = folder / outcome_file(side, place)
    log = _log(logs, side)
    if not said.exists():
        how = f"was killed by signal {-code}" if code < 0 else f"exited {code}"
        raise EngineError(f"verify's {side} process {how}; its output is in {log}")
    outcome: Outcome = json.loads(said.read_text())
    if outcome["kind"] == "refused":
        raise ConfigError(outcome["text"])
    if outcome["kind"] == "failed":
        raise EngineError(f"{outcome['text']} (verify's {side} process; its output is in {log})")
    return outcome
