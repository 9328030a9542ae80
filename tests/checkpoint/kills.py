"""Kills training runs at random moments and resumes them; each must end as the run that was never killed.

    python -m tests.checkpoint.kills --times 20 [overrides]

Prints a line a run. Final parameters and slots are compared bit for bit, and the training and evaluation points in
MLflow by step and value, with none twice and none missing.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.checkpoint import storage
from runner.checkpoint.storage import Checkpoint
from tests import forks

CONFIG = (
    "mesh=batch8",
    "dataset=digits",
    "trainer.epochs=60",
    "trainer.checkpoint.every_steps=100",
    "trainer.log_model=false",
    "trainer.progress=none",
)
_KEYS = ("train/loss", "train/accuracy", "learning_rate", "eval/loss", "eval/accuracy")
Points = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Ended:
    """A run that ended, with what it left."""

    checkpoint: Checkpoint
    points: Points


def command(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Returns the training command, with its records in a folder."""
    uri = f"tracking.uri=sqlite:///{folder.as_posix()}/mlflow.db"
    places = [
        uri,
        f"trainer.checkpoint.folder={folder.as_posix()}/checkpoints",
        f"hydra.run.dir={folder.as_posix()}/run",
    ]
    return [sys.executable, "-m", "runner", *places, *overrides]


def uninterrupted(folder: Path, overrides: Sequence[str]) -> tuple[Ended, float]:
    """Trains to the end; returns what it left and the seconds that it took."""
    began = time.monotonic()
    _to_the_end(folder, overrides)
    return ended(folder), time.monotonic() - began


def killed(folder: Path, overrides: Sequence[str], seconds: Sequence[float]) -> tuple[Ended, int]:
    """Trains, kills the process after so many seconds of training, and resumes, for each of the moments.

    Args:
      folder: of its records.
      overrides: the config.
      seconds: from a process's first checkpoint on, to its end.

    Returns:
      What it left in the end, and how often it was killed before its end.
    """
    kills = 0
    for moment in seconds:
        there = storage.steps(_checkpoints(folder)) if _found(folder) else []
        process = forks.Popen(_next(folder, overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not _found(folder) or storage.steps(_checkpoints(folder)) == there):
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        elif process.returncode == 0:
            return ended(folder), kills
    _to_the_end(folder, overrides)
    return ended(folder), kills


def _next(folder: Path, overrides: Sequence[str]) -> list[str]:
    return command(folder, ["resume=latest"] if _found(folder) else overrides)


def _to_the_end(folder: Path, overrides: Sequence[str]) -> None:
    done = forks.run(_next(folder, overrides))
    if done.returncode and "the run has done its" not in done.stderr:  # killed when all was done
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")


def _found(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("*/step-*"))


def _checkpoints(folder: Path) -> Path:
    return next((folder / "checkpoints").glob("*/run.json")).parent


def ended(folder: Path) -> Ended:
    """Returns what a run left in its folder."""
    from mlflow.tracking import MlflowClient

    checkpoints = _checkpoints(folder)
    client = MlflowClient(f"sqlite:///{folder.as_posix()}/mlflow.db")
    run = client.get_run(checkpoints.name)
    if run.info.status != "FINISHED":
        raise RuntimeError(f"the run's status is {run.info.status}")
    points = {key: [(m.step, m.value) for m in client.get_metric_history(checkpoints.name, key)] for key in _KEYS}
    return Ended(Checkpoint(storage.place(checkpoints, storage.steps(checkpoints)[-1])), points)


def differences(whole: Ended, resumed: Ended) -> list[str]:
    """Returns in what two runs differ, in words."""
    found = [] if set(whole.checkpoint) == set(resumed.checkpoint) else ["other variables"]
    found += [
        path for path in whole.checkpoint if not np.array_equal(whole.checkpoint[path], resumed.checkpoint[path])
    ]
    for key, points in whole.points.items():
        steps = [step for step, _ in resumed.points[key]]
        if len(set(steps)) != len(steps):
            found.append(f"{key} has points twice")
        if sorted(points) != sorted(resumed.points[key]):
            found.append(f"{key} has other points")
    return found


def main() -> None:
    """Prints a line a killed run, and exits with 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", default=list(CONFIG))
    given = parser.parse_args()
    draw, wrong = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory(prefix="runner-kills-") as name:
        whole, seconds = uninterrupted(Path(name) / "whole", given.overrides)
        print(f"uninterrupted: step {whole.checkpoint.step}, {seconds:.1f} s", flush=True)
        for number in range(given.times):
            moments = [draw.uniform(0.0, 4.0) for _ in range(draw.randint(1, 3))]
            resumed, kills = killed(Path(name) / str(number), given.overrides, moments)
            found = differences(whole, resumed)
            wrong += bool(found)
            told = ", ".join(re.sub(r"\s+", " ", one) for one in found) or "the same, bit for bit"
            print(f"run {number + 1}: killed {kills} times, step {resumed.checkpoint.step}: {told}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
