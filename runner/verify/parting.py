"""Search for the first step at which two recorded runs part: `runner.verify run=<run id> against=<run id>`.

The logged metrics and the checkpoints of both runs bound the step: after it they differ, and at the last common
checkpoint that is equal they do not differ yet. Between these bounds both runs are computed again, with a digest of
every variable after each step. Each has a process of its own, because they may need other engines and devices.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.checkpoint import runs, storage
from runner.checkpoint.metric_history import MetricHistory
from runner.checkpoint.places import Place
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import SavedRun
from runner.config.quoting import quoted
from runner.console import Console
from runner.errors import EXIT_REFUSED, ConfigError, EngineError, invalid, shown
from runner.layout.paths import is_variable
from runner.verify.replay import FILE, State, config_differences, digests


@dataclass(frozen=True)
class _Side:
    """One of the runs, with the steps of its checkpoints, the last of them, and the metrics in it."""

    run: SavedRun
    steps: list[int]
    last: Checkpoint
    history: MetricHistory


def run(run: SavedRun, against: str, folder: Place) -> None:
    """Prints where a run and that of `against=`, whose checkpoints are in a folder, part; the result last.

    Raises:
      ConfigError: there is no such run, or a run can't be computed again.
      EngineError: a computation failed.
    """
    say = Console().print_lines
    first = _opened(run)
    other, step = runs.find("against", against, folder)
    if step is not None:
        raise invalid(
            "against", against, problem="names a checkpoint, but must name a run", fix="remove the part after @"
        )
    second = _opened(other)
    differences = config_differences(first.last.about["config"], second.last.about["config"])
    if not differences:
        say(["configs: equal"])
    for key, (before, after) in differences.items():
        say([f"configs: {key} is {shown(before)} and {shown(after)}"])
    low, high = _bounds(first, second)
    if high is None:
        say([f"the runs do not part: their common metrics and checkpoints up to step {low:,} are equal"])
        return
    if low:
        say([f"equal at the checkpoints of step {low:,}"])
    say([f"the first recorded difference is at step {high:,}"])
    ours = _computed(first.run, low, high)
    theirs = _computed(second.run, low, high)
    for step in sorted(ours.keys() & theirs.keys()):
        paths = differing(ours[step], theirs[step])
        if paths:
            where = f"in step {step:,}" if step else "before the first step: they begin with different values"
            say([f"the runs part {where}; first variable: {paths[0]} (of {len(paths)} that differ)"])
            if step:
                say([f"to see that step: python -m runner.verify run={run.id} step={step}"])
            return
    conclusion = (
        "computed again, the runs do not part: what made them differ is in neither their configs nor their data "
        "(another version of a library, or code that has changed since)"
    )
    say([conclusion])


def _opened(run: SavedRun) -> _Side:
    steps = storage.steps(run.folder)
    last = runs.open_checkpoint("run", run, steps[-1])
    return _Side(run, steps, last, last.history())


def _bounds(first: _Side, second: _Side) -> tuple[int, int | None]:
    """Returns the last common checkpoint before which nothing differs, and a step at which the runs differ.

    The first is 0 if there is no such checkpoint. The second is None if nothing that both have recorded differs; the
    first is then the last step that both have recorded.
    """
    high = None
    compared = 0
    recorded = dict(second.history.train)
    for step, means in first.history.train:
        if step not in recorded:
            continue
        compared = step
        names = means.keys() & recorded[step].keys()
        if not all(np.array_equal(means[name], recorded[step][name], equal_nan=True) for name in names):
            high = step
            break
    low = 0
    # In ascending order, and only up to the first difference: every byte of a checkpoint is read to open it.
    for step in sorted(set(first.steps) & set(second.steps)):
        if high is not None and step >= high:
            break
        compared = max(compared, step)
        ours = digests(runs.open_checkpoint("run", first.run, step))
        theirs = digests(runs.open_checkpoint("run", second.run, step))
        if differing(ours, theirs):
            high = step
            break
        low = step
    return (compared, None) if high is None else (low, high)


def _computed(run: SavedRun, low: int, high: int) -> dict[int, State]:
    """Computes a run's steps from the checkpoint of `low` (0: the beginning) to `high` again, in its own process."""
    with tempfile.TemporaryDirectory(prefix="runner-verify-") as folder:
        command = [sys.executable, "-m", "runner.verify", f"run={quoted(str(run.folder))}"]
        command += [f"hydra.run.dir={quoted(folder)}", "replay.states=true"]
        command += [f"replay.start={low}", f"replay.step={high}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        result = Path(folder) / FILE
        # A step that differs from its record ends with exit code 1, and has written what it computed.
        if result.is_file():
            return {int(step): state for step, state in json.loads(result.read_text())["states"].items()}
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")
    error = ConfigError if done.returncode == EXIT_REFUSED else EngineError
    raise error(f"{last} (while run {run.id} was computed again)")


def differing(one: State, other: State) -> list[str]:
    """Returns the variables in which two states are not bitwise equal, the model's first."""
    paths = [path for path in one | other if one.get(path) != other.get(path)]
    return sorted(paths, key=lambda path: not is_variable(path))
