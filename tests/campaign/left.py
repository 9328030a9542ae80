"""What a run left behind, and in what two runs differ that must not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.host.stores.urls import Place
from runner.training.checkpoint import files, index, storage
from runner.training.checkpoint.reading import Checkpoint

_RATES, _USAGE, _GOODPUT = "throughput/", "system/", "goodput/"
_TIMES = (_RATES, _USAGE, _GOODPUT)  # metrics that measure time
_OF_THE_RUN = ("throughput/input_wait", _GOODPUT)  # logged once, when the run has ended
_OF_ATTEMPTS = ("attempts.json", "goodput.png")  # files of a run that had several
_LEFT_OVER = re.compile(r"\.unfinished.*|\.tmp.*")  # names of what is not whole
_WINDOWS = ("train/", "learning_rate")  # metrics of a few steps each
_SHARP, _SHARP_STEPS = 1e-5, 20  # relative difference of losses, and how many steps after a move it holds for
_RESULTS = ("steps", "taken_step", "ended", "train_loss", "train_accuracy", "eval_loss", "eval_accuracy")
Points = Mapping[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Left:
    """What a finished run left.

    Attributes:
      checkpoint: its last.
      best: what is said of the best one.
      points: of each metric, step and value in the order in which they were logged.
      artifacts: names of the recorded files.
      results: what the summary of the run says, times left out.
      faults: what no run may leave, in words.
    """

    checkpoint: Checkpoint
    best: Mapping[str, Any] | None
    points: Points
    artifacts: tuple[str, ...]
    results: Mapping[str, Any]
    faults: tuple[str, ...]


def left_in(folder: Path, uri: str, name: str = "", checkpoints: Place | None = None) -> Left:
    """Reads what the only run of a folder that finished has left.

    Args:
      folder: holds the runs' own folders.
      uri: of the store that it was recorded in.
      name: of the run, if it has one.
      checkpoints: of all runs; None: the folder's `checkpoints`.

    Raises:
      RuntimeError: no run has finished, or several have.
    """
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(experiments)
    finished = [run for run in found if run.info.status == "FINISHED"]
    if len(finished) != 1:
        raise RuntimeError(f"the runs' statuses are {', '.join(run.info.status for run in found)}")
    run_id = finished[0].info.run_id
    place = (checkpoints or folder / "checkpoints") / (name or run_id)
    histories = {key: client.get_metric_history(run_id, key) for key in finished[0].data.metrics}
    points = {key: [(m.step, m.value) for m in sorted(ms, key=_logged)] for key, ms in histories.items()}
    faults = [f"run {one.info.run_id} is {one.info.status}" for one in found if not _is_right(one, run_id)]
    faults += [f"{name} is left over" for name in _left_over(place)]
    if not files.read_json(place / "run.json", files.LARGEST_RECORD).get("finished"):
        faults.append("run.json does not say that the run has finished")
    newest = max(folder.glob("run*/summary.json"), key=lambda path: path.stat().st_mtime)
    summary = json.loads(newest.read_text())
    return Left(
        Checkpoint(storage.place(place, storage.steps(place)[-1])),
        index.read_best(place),
        points,
        tuple(sorted({item.path for item in client.list_artifacts(run_id)} - {*_OF_ATTEMPTS})),
        {name: summary[name] for name in _RESULTS},
        tuple(faults),
    )


def _left_over(place: Place) -> list[str]:
    """Returns the names of files that belong to no checkpoint and no record."""
    return [path.name for path in place.rglob("*") if _LEFT_OVER.fullmatch(path.name)]


def _logged(metric: Any) -> tuple[int, int]:
    return metric.timestamp, metric.step


def _is_right(run: Any, finished: str) -> bool:
    """Tells whether a run that was started again, as it had no checkpoint yet, says of itself that it was killed."""
    return bool(run.info.run_id == finished or run.info.status == "KILLED")


def differences(whole: Left, resumed: Left, *, again: bool = False, asked: int = 0, starts: int = 0) -> list[str]:
    """Returns in what a run that was killed differs from one that was not, in words; nothing but times may.

    Args:
      whole: what the run that was not killed has left.
      resumed: what the other has.
      again: the run does steps again, and logs them again: the last point of a step counts.
      asked: how often it was asked to end, where it logs the mean of the steps that it has not logged yet.
      starts: how often it began; the first calls of each, which compile, give no rate.
    """
    found, steps = list(resumed.faults), (whole.checkpoint.step, resumed.checkpoint.step)
    found += [] if steps[0] == steps[1] else [f"the last checkpoint is of step {steps[1]} in place of {steps[0]}"]
    found += _unequal("checkpoint", whole.checkpoint, resumed.checkpoint)
    found += _unequal("history", _without_times(whole), _without_times(resumed))
    for name in ("best", "artifacts", "results"):
        one, other = getattr(whole, name), getattr(resumed, name)
        found += [] if one == other else [f"{name}: {other} in place of {one}"]
    for key in {*whole.points, *resumed.points}:
        points, others = whole.points.get(key, []), resumed.points.get(key, [])
        found += [] if again else _twice(key, others)
        if key.startswith(_TIMES):  # when these come is a matter of time, but for the end of an epoch
            ends = {step for step, _ in resumed.points.get("eval/loss", [])}
            ends = {max(ends)} if ends and key.startswith(_OF_THE_RUN) else ends if key.startswith(_RATES) else set()
            lacking = sorted(ends - {step for step, _ in others})
            found += [f"{key} lacks steps {lacking}"] if len(lacking) > asked + starts else []
        else:
            more_allowed = asked if key.startswith(_WINDOWS) else 0
            found += _other_points(key, dict(points), dict(others), more_allowed)
    return found


def rounded_differences(whole: Left, resumed: Left, *, moved_at: int, rtol: float, atol: float) -> list[str]:
    """Returns in what a run that went on elsewhere differs by more than rounding, in words.

    Args:
      whole: what a run that stayed where it was has left.
      resumed: what the other has.
      moved_at: step up to which it was where the first one is; there nothing may differ.
      rtol: of arrays and losses.
      atol: of arrays, and in place of it one example's share of an accuracy.
    """
    found = list(resumed.faults)
    if set(whole.checkpoint) != set(resumed.checkpoint) or whole.checkpoint.step != resumed.checkpoint.step:
        return [*found, "other variables, or another step"]
    for path in whole.checkpoint:
        one, other = whole.checkpoint[path], resumed.checkpoint[path]
        if not np.allclose(other, one, rtol=rtol, atol=atol):
            found.append(f"{path} differs by {np.max(np.abs(one - other)):.2g}")
    rows, others = (_losses(left) for left in (whole, resumed))
    before = int(np.sum(rows[:, 0] <= moved_at))
    if rows.shape != others.shape or not np.array_equal(rows[:before], others[:before]):
        found.append(f"the history differs up to step {moved_at}, where it was")
    else:
        soon = rows[:, 0] <= moved_at + _SHARP_STEPS  # training amplifies rounding
        for where, most in ((soon, min(rtol, _SHARP)), (~soon, rtol)):
            if not np.allclose(others[where, 1], rows[where, 1], rtol=most, atol=0.0):
                found.append(f"losses differ by {np.max(np.abs(others[where, 1] - rows[where, 1])):.2g}")
    for key, points in whole.points.items():
        logged = resumed.points.get(key, [])
        found += _twice(key, logged)
        if not key.startswith((*_TIMES, "plan/")) and not {step for step, _ in points} <= {step for step, _ in logged}:
            found.append(f"{key} lacks points")
    return found


def _losses(left: Left) -> Any:
    """Returns (step, loss) of every logged window."""
    held = left.checkpoint.history()
    return np.column_stack([held["train"], held["train/loss"]])


def _without_times(left: Left) -> dict[str, Any]:
    return {name: array for name, array in left.checkpoint.history().items() if name != "rates"}


def _unequal(what: str, whole: Mapping[str, Any], resumed: Mapping[str, Any]) -> list[str]:
    if set(whole) != set(resumed):
        return [f"{what}: other arrays, {' '.join(sorted(set(whole) ^ set(resumed)))}"]
    return [
        f"{what}: {path} differs" for path in whole if not np.array_equal(whole[path], resumed[path], equal_nan=True)
    ]


def _other_points(key: str, whole: Mapping[int, float], resumed: Mapping[int, float], more_allowed: int) -> list[str]:
    wrong = {step: resumed.get(step) for step, value in whole.items() if resumed.get(step) != value}
    more = {step: resumed[step] for step in set(resumed) - set(whole)}
    found = [f"{key}: {wrong} in place of { ({step: whole[step] for step in wrong}) }"] if wrong else []
    return found + ([f"{key}: {more} besides"] if len(more) > more_allowed else [])


def _twice(key: str, points: list[tuple[int, float]]) -> list[str]:
    steps = [step for step, count in Counter(step for step, _ in points).items() if count > 1]
    return [f"{key} has points of steps {steps[:3]} twice"] if steps else []
