"""The sides of a verification as child processes: the number of virtual devices can't change within a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Required, TypedDict

from runner.cluster.place import Place
from runner.engine import registry
from runner.errors import ConfigError, EngineError

# The module of a side's process; tests put another in its place.
WORKER = "runner.verify.worker"
# Sides compute for seconds to minutes: 20 ms more are not noticed, and 50 looks per second take no CPU time.
_POLL_S = 0.02
# The side of one device that runs more perturbed runs.
PERTURBED = "perturbed"


class SideResult(TypedDict, total=False):
    """Result of a side, which it writes when it ends.

    Attributes:
      kind: `done`, `invalid` (the config) or `failed`, with the reason as `text`.
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
    concurrency: int = 1,
    places: Mapping[str, Place] = MappingProxyType({}),
) -> dict[str, SideResult]:
    """Runs sides to their ends, in their order; the first that fails ends the others.

    Args:
      sides: `reference`, `mesh` or `perturbed`.
      folder: contains the request, and gets the sides' arrays.
      logs: folder; `verify-<side>.log` gets what a process and its libraries print.
      concurrency: how many run at the same time; one that needs another's arrays waits for them.
      places: by side that computes in several processes, the place of this process's child among them.

    Raises:
      ConfigError: the config is invalid for a side.
      EngineError: a side failed, or its process ended without a result.
    """
    results: dict[str, SideResult] = {}
    waiting = list(sides)
    running: dict[str, subprocess.Popen[bytes]] = {}
    # In the calling thread alone: a signal's exception must reach the one that waits.
    try:
        while waiting or running:
            while waiting and len(running) < concurrency:
                side = waiting.pop(0)
                running[side] = _start(side, folder, logs, places.get(side))
            for side, child in list(running.items()):
                code = child.poll()
                if code is not None:
                    del running[side]
                    results[side] = _result(side, code, folder, logs, places.get(side))
            if running:
                time.sleep(_POLL_S)
    finally:
        for child in running.values():
            child.kill()
            child.wait()
    return {side: results[side] for side in sides}


def _start(side: str, folder: Path, logs: Path, place: Place | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", WORKER, side, str(folder)]
    # This process may have prepared its own environment for an engine; each side prepares another.
    environment = registry.environment_for_children()
    if place is not None:
        environment = {**environment, **place.environment()}
    with _log(logs, side).open("wb") as output:
        # Nothing is ever written to the child's stdin. It closes when this process ends, and the child ends then too.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
        )


def result_file(side: str, place: Place | None) -> str:
    """Returns the name of the file with a side's result; each of several processes has its own."""
    return f"{side}.json" if place is None or not place.index else f"{side}-{place.index}.json"


def _log(logs: Path, side: str) -> Path:
    return logs / f"verify-{side}.log"


def _result(side: str, code: int, folder: Path, logs: Path, place: Place | None) -> SideResult:
    """Returns the result of a side whose process ended; raises as `run_children` does."""
    file = folder / result_file(side, place)
    log = _log(logs, side)
    if not file.exists():
        end = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        raise EngineError(f"verify's {side} process {end}; its output is in {log}")
    result: SideResult = json.loads(file.read_text())
    if result["kind"] == "invalid":
        raise ConfigError(result["text"])
    if result["kind"] == "failed":
        raise EngineError(f"{result['text']} (verify's {side} process; its output is in {log})")
    return result
