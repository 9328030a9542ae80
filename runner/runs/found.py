"""The runs that there are: of the tracking store, of the folder of checkpoints, and of outputs/runs."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from mlflow.entities import Run

from runner.compare import metrics
from runner.compare.lines import Stat
from runner.compare.records import RunRecord, from_run, results_of
from runner.compare.render import show
from runner.errors import invalid
from runner.host import folders
from runner.runs.choice import Choice
from runner.tracking import process
from runner.tracking.store import Store, search
from runner.training.checkpoint import runs, storage
from runner.training.checkpoint.runs import SavedRun

KEEP_TAG = "runner.keep"  # a run whose checkpoints `clean` leaves: true
_KIND = "runner.kind"
_SWEEP = "sweep"
_KILLED = "KILLED"
_LATEST = "latest"


@dataclass(frozen=True)
class Found:
    """A run.

    Attributes:
      run: its id, or the name of its folder where nothing was tracked.
      name: its name.
      status: as MLflow words it; UNFINISHED where only its checkpoints tell that it did not come to its end.
      started: seconds since 1970.
      ended: likewise; null: it runs, or nobody has noted when.
      result: the metric that its task is judged by.
      kept: whether a person said that `clean` leaves it.
      stored: whether the tracking store has it.
      foreign: whether it was tracked, and not in this store: who keeps it can't be known.
      saved: its checkpoints; null: there are none.
      steps: of the checkpoints.
      bytes: of the checkpoints.
      origin: run and step that it branches from; empty: none.
      config: its config's file, where only the folder that it wrote into tells of it; null: it is recorded elsewhere.
    """

    run: str
    name: str
    status: str
    started: float
    ended: float | None
    result: str = ""
    kept: bool = False
    stored: bool = False
    foreign: bool = False
    saved: SavedRun | None = None
    steps: tuple[int, ...] = ()
    bytes: int = 0
    origin: str = ""
    config: Path | None = None

    @property
    def seconds_ago(self) -> float:
        """Seconds since it ended, or began."""
        return time.time() - (self.ended or self.started)


def find(store: Store | None, checkpoints: Path, outputs: Path) -> tuple[list[Found], list[str]]:
    """Returns every run, newest first, and a line for each that can't be read.

    Args:
      store: the tracking store; null: there is none.
      checkpoints: where runs keep them.
      outputs: folder of the folders that runs write into.
    """
    saved, damaged = runs.listed(checkpoints)
    by_id = {one.run: one for one in saved}
    tracked = {} if store is None else {run.info.run_id: run for run in _of_store(store)}
    tracked |= {} if store is None else _deleted(store, [one.run for one in saved if one.run_id], tracked)
    found = [_tracked(run, by_id.get(run_id)) for run_id, run in tracked.items()]
    found += [_untracked(one) for one in saved if one.run not in tracked]
    found += _of_folders(outputs, {one.run for one in found})
    said = [f"{folder} is left out: {error}" for folder, error in damaged.items()]
    return sorted(found, key=lambda one: -one.started), said


def _of_store(store: Store) -> list[Run]:
    experiments = [one.experiment_id for one in store.client.search_experiments()]
    return [run for run in search(store, experiments, "") if run.data.tags.get(_KIND) != _SWEEP]


def _deleted(store: Store, ids: Iterable[str], there: dict[str, Run]) -> dict[str, Run]:
    """Returns runs that left checkpoints and were deleted in the store since."""
    found = {}
    for run_id in ids:
        if run_id not in there:
            try:
                found[run_id] = store.client.get_run(run_id)
            except Exception:  # it never was there; MLflow's stores share no error for that
                continue
    return found


def _tracked(run: Run, saved: SavedRun | None) -> Found:
    record = from_run(run)
    status = record.status
    is_left = record.status == "RUNNING" and process.is_gone(record.tags)
    if run.info.lifecycle_stage != "active":
        status = "DELETED"
    return Found(
        run=record.run_id,
        name=record.name,
        status=_KILLED if is_left else status,
        started=record.started / 1000,
        ended=run.info.end_time / 1000 if run.info.end_time else None,
        result=result_of(record),
        kept=record.tags.get(KEEP_TAG, "").lower() == "true",
        stored=True,
        origin=record.tags.get("runner.branched_from", ""),
        **_of_disk(saved),
    )


def _untracked(saved: SavedRun) -> Found:
    record = saved.record
    over = record.get("ended") or process.is_gone(record["process"])
    return Found(
        run=saved.run,
        name=saved.folder.name,
        status="FINISHED" if record.get("finished") else "UNFINISHED" if over else "RUNNING",
        started=float(record["started"]),
        ended=_last_saved(saved) if over else None,
        kept=bool(record.get("kept")),
        foreign=saved.run_id is not None,
        origin=str(record.get("origin", "")),
        **_of_disk(saved),
    )


def _last_saved(saved: SavedRun) -> float:
    """Returns when a run wrote its last checkpoint, which nothing does after its end."""
    places = [storage.place(saved.folder, step) for step in storage.steps(saved.folder)]
    return max(float(place.lstat().st_mtime) for place in places)


def _of_disk(saved: SavedRun | None) -> dict[str, Any]:
    if saved is None:
        return {}
    steps = tuple(storage.steps(saved.folder))
    return {"saved": saved, "steps": steps, "bytes": sum(size(storage.place(saved.folder, step)) for step in steps)}


def size(folder: Path) -> int:
    """Returns the bytes of a folder's files."""
    return sum(path.lstat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else 0


def _of_folders(outputs: Path, known: Collection[str]) -> list[Found]:
    """Returns the runs that only the folders that they wrote into tell of.

    Nothing here needs a run's config, and parsing one takes 15 ms: `readable` looks at those of the rows that are
    shown.

    Args:
      outputs: folder of those folders.
      known: runs that are recorded elsewhere too.
    """
    found = []
    for folder in outputs.glob("*") if outputs.is_dir() else []:
        run = folders.noted_run(folder)
        if run is None or run in known:
            continue
        config = folder / "config.yaml"
        try:
            began = config.stat().st_mtime
        except OSError:  # it did not begin
            continue
        status = "FINISHED" if (folder / "summary.json").is_file() else "UNFINISHED"
        result = result_of(RunRecord("", folder.name, status, {}, results_of(folder)))
        found.append(Found(run, folder.name, status, began, None, result, config=config))
    return found


def readable(found: Iterable[Found], most: int) -> tuple[list[Found], list[str]]:
    """Returns the first runs of a list, and a line for each that is left out because its config can't be read.

    Args:
      found: the runs.
      most: how many are returned; 0: all.
    """
    kept: list[Found] = []
    said: list[str] = []
    for one in found:
        if most and len(kept) == most:
            break
        problem = None if one.config is None else _problem_of(one.config)
        if problem is None:
            kept.append(one)
        else:
            said.append(f"{one.config} is left out: {problem}")
    return kept, said


def _problem_of(config: Path) -> str | None:
    """Returns in one line why a config can't be read; None where it can."""
    try:
        # The loader in C, where PyYAML has it, takes a tenth of the time; both make plain values only.
        content = yaml.load(config.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        json.dumps(content, default=str)  # an alias may make a value part of itself
    except (OSError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        return " ".join(str(error).split())
    return None if isinstance(content, dict) else "it holds no config"


def result_of(record: RunRecord) -> str:
    """Returns the metric that a run's task is judged by, as a cell shows it; empty where it has none."""
    metric = metrics.judged_by([record])
    if metric not in record.metrics:
        return ""
    return f"{metric} {show(Stat(record.metrics[metric]))}"


def chosen(found: Sequence[Found], choice: Choice) -> list[Found]:
    """Returns the runs that a choice means, in the same order.

    Raises:
      ConfigError: it names a run that is not there, or several.
    """
    named = {one.run for word in choice.runs for one in [named_run(found, word)]}
    newest = [one.run for one in found if one.saved is not None][: choice.keep or 0]
    return [
        one
        for one in found
        if (not choice.runs or one.run in named)
        and (choice.older is None or one.seconds_ago >= choice.older)
        and (not choice.statuses or one.status in choice.statuses)
        and (choice.keep is None or one.run not in newest)
    ]


def named_run(found: Sequence[Found], word: str) -> Found:
    """Returns the run that an id, the beginning of one, a name or `latest` means; of one name the newest.

    Args:
      found: newest first.
      word: as typed.

    Raises:
      ConfigError: there is none, or an id's beginning fits several.
    """
    if word == _LATEST and found:
        return found[0]
    begins = [one for one in found if word and one.run.startswith(word)]
    exact = [one for one in begins if one.run == word] or [one for one in found if one.name == word][:1]
    if exact:
        return exact[0]
    if len(begins) == 1:
        return begins[0]
    newest = ", ".join(one.run for one in found[:3]) or "none yet"
    why = "several runs' ids begin so" if begins else "no run has this id or name"
    raise invalid("run", word, problem=f"{why}; the newest are {newest}", fix="set run=latest or run=<id>")
