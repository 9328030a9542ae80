"""Runs of the real command, alone and in several processes, and what they leave."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.storage import steps
from tests import forks
from tests.stores import store_in

ROOT = Path(__file__).parents[2]
DIGITS = ("dataset=digits", "trainer.log_model=false", "trainer.progress=lines", "trainer.log_every_steps=1")


def arguments(folder: Path, *overrides: str, module: str = "runner") -> list[str]:
    """Returns a command of digits whose checkpoints lie in a folder, and what it writes."""
    run = [] if module != "runner" else [f"hydra.run.dir={folder / 'run'}"]
    kept = [f"trainer.checkpoint.folder={folder / 'checkpoints'}"]
    digits = DIGITS if module == "runner" or not any(one.startswith("run=") for one in overrides) else ()
    return [sys.executable, "-m", module, *digits, *kept, *run, *overrides]


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a command, whose store lies in a folder."""
    paths = f"{folder}:{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "MLFLOW_TRACKING_URI": store_in(folder), **(more or {})}


def run(
    folder: Path,
    *overrides: str,
    code: int = 0,
    module: str = "runner",
    library: str | None = None,
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and checks its exit code; `library` as in `forks.Popen`."""
    folder.mkdir(exist_ok=True)
    command = arguments(folder, *overrides, module=module)
    done = forks.run(command, library=library, cwd=folder, env=environment(folder, more), timeout=280)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def several(count: int) -> list[str]:
    """Returns the overrides of a run in so many processes of this machine; none where it is alone."""
    return [] if count == 1 else ["cluster=local", f"cluster.processes={count}"]


def last(folder: Path) -> Checkpoint:
    """Returns the last checkpoint of the folder's only run."""
    (own,) = [path for path in (folder / "checkpoints").iterdir() if path.is_dir()]
    return Checkpoint(own / f"step-{steps(own)[-1]:09d}")


def losses(checkpoint: Checkpoint) -> np.ndarray[Any, Any]:
    """Returns the loss of every step that a run of one step a window has logged."""
    return np.array([means["loss"] for _, means in checkpoint.history().train])


def columns(checkpoint: Checkpoint) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the metrics of a checkpoint's history, by table and name."""
    history = checkpoint.history()
    tables = {"train": history.train, "epochs": history.epochs, "evaluations": history.measured()}
    found: dict[str, np.ndarray[Any, Any]] = {}
    for table, rows in tables.items():
        for name in rows[0][1] if rows else ():
            found[f"{table}/{name}"] = np.array([values[name] for _, values in rows])
    return found


def differences(one: Checkpoint, other: Checkpoint) -> dict[str, float]:
    """Returns by how much states and histories differ, where they do; times are left out."""
    found = {path: _difference(one[path], other[path]) for path in one}
    assert set(one) == set(other)
    theirs = columns(other)
    found |= {key: _difference(values, theirs[key]) for key, values in columns(one).items()}
    return {key: value for key, value in found.items() if value}


def _difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))


def recorded(folder: Path) -> Any:
    """Returns the client and the only run of a folder's store."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("runner")
    assert experiment is not None
    (only,) = client.search_runs([experiment.experiment_id])
    return client, only


def points(folder: Path) -> tuple[Any, dict[str, list[tuple[int, float]]]]:
    """Returns the only run of a folder's store, and its points by metric, in the order in which they were logged."""
    client, only = recorded(folder)
    histories = {key: client.get_metric_history(only.info.run_id, key) for key in only.data.metrics}
    return only, {key: [(one.step, one.value) for one in found if one.step] for key, found in histories.items()}


def alike(found: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, Sequence[tuple[int, float]]]:
    """Returns those points that two runs of a config have alike: no times, and nothing of the machine."""
    return {key: value for key, value in found.items() if key.startswith(("train/", "eval/", "test/", "learning"))}
