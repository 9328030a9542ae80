"""Replays of recorded runs in processes of their own: two runs may need other engines and devices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.data.base import Array
from runner.errors import EXIT_REFUSED, ConfigError, EngineError
from runner.host.quoting import quoted
from runner.task.base import LOSS
from runner.training.checkpoint.runs import SavedRun
from runner.verify.request import read_arrays

_COMMAND = "runner.replay"
_RESULT = "replay.json"
_ARRAYS = "arrays.npz"


@dataclass(frozen=True)
class Replay:
    """What a replay has written.

    Attributes:
      content: of replay.json.
      folder: with its files.
    """

    content: Mapping[str, Any]
    folder: Path

    @property
    def step(self) -> int:
        """The step that was reached."""
        return int(self.content["step"])

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each step."""
        return {int(step): float(means[LOSS]) for step, means in self.content["metrics"].items()}

    @property
    def states(self) -> dict[int, Mapping[str, Any]]:
        """The records of the state by the number of steps done."""
        return {int(state["step"]): state for state in self.content["states"]}

    def metrics(self, step: int) -> Mapping[str, float]:
        """Returns the metrics of a step; empty if it was not computed."""
        metrics: Mapping[str, float] = self.content["metrics"].get(str(step), {})
        return metrics

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays of the step; only if the replay was asked for them."""
        return read_arrays(self.folder / _ARRAYS)


def replay(run: SavedRun, folder: Path, options: Sequence[str]) -> Replay:
    """Replays a run in a process of its own.

    Args:
      run: recorded.
      folder: gets the files, and the process's output as output.log.
      options: overrides of `replay`, without the group's name.

    Raises:
      ConfigError: the replay is invalid.
      EngineError: it failed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        _COMMAND,
        f"run={quoted(str(run.folder))}",
        f"hydra.run.dir={quoted(str(folder))}",
    ]
    command += [f"replay.{option}" for option in options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # A replay that is rejected early has not made its folder, and its output is stored all the same.
    folder.mkdir(exist_ok=True)
    (folder / "output.log").write_text(done.stdout + done.stderr)
    result = folder / _RESULT
    # A replay that differs from the record ends with exit code 1, and has written what it computed.
    if result.is_file():
        return Replay(json.loads(result.read_text()), folder)
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")
    if done.returncode == EXIT_REFUSED:
        raise ConfigError(f"{last} (replay of run {run.id})")
    raise EngineError(f"{last} (replay of run {run.id}; its output is in {folder})")
