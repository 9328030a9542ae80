"""`resume=<run id|latest>`, `branch=...` and `run=...` on the command line.

Imports neither NumPy nor what reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config import renamed
from runner.config.schema import CheckpointConfig, RunConfig
from runner.errors import ConfigError, invalid
from runner.host.late import late
from runner.host.paths import outputs_dir
from runner.processes import requeue
from runner.processes.team import current

if TYPE_CHECKING:
    from runner.training.checkpoint import recorded, runs, signature
else:  # with NumPy, which a refusal would wait for
    recorded = late("runner.training.checkpoint.recorded")
    runs = late("runner.training.checkpoint.runs")
    signature = late("runner.training.checkpoint.signature")

KEYS = ("run", "resume", "branch")  # evaluates or exports; trains on; trains on as a new run
_FOLDER = "trainer.checkpoint.folder"
MULTIRUN = ("-m", "--multirun")


def folder_of(config: CheckpointConfig) -> Path:
    """Returns where runs keep their checkpoints."""
    return Path(config.folder).expanduser().absolute() if config.folder else outputs_dir() / "checkpoints"


def expand(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with what the run that it names was started with.

    A key that is typed again wins over the recorded one, and a group's option over recorded keys of that group.

    Args:
      arguments: as typed, without the program.

    Raises:
      ConfigError: there is no such run, it can't be used so, or its record sets what a record may not set.
    """
    given = {key: value for key in KEYS if (value := value_of(arguments, key))}
    if not given:
        return list(arguments)
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} are refused together: resume trains on, branch does so as a new run, and "
            "run is for evaluate and export; leave out all but one"
        )
    key, wanted = next(iter(given.items()))
    if any(argument in MULTIRUN for argument in arguments):
        raise invalid(key, wanted, problem="one run, not a multirun", fix="drop -m, or set sweep.resume for a sweep")
    root = folder_of(CheckpointConfig(folder=value_of(arguments, _FOLDER) or None))
    found, step = runs.find(key, wanted, root)
    typed = [argument for argument in arguments if key_of(argument) != key]
    keys = [key_of(argument) for argument in typed]
    if key == "run":
        keys.append("cluster")  # what evaluates or exports a run need not be spread as the run was
    record = recorded.Record(key, str(found.folder), signature.is_own(found.run, found.record))
    taken = record.checked(without(found.record["overrides"], keys))
    taken += _earlier_defaults(key, found, step, taken, keys)
    reference = found.folder.as_posix() + (f"@{step}" if step is not None else "")
    return [*taken, *typed, f"{key}='{reference}'"]


def _earlier_defaults(
    key: str, run: runs.SavedRun, step: int | None, taken: Sequence[str], typed: Sequence[str]
) -> list[str]:
    """Returns the overrides that keep what was a default when a run was recorded; see `runs.earlier_defaults`.

    Args:
      key: `resume`, `branch` or `run`; the last trains nothing, so it needs the model's alone.
      run: the run.
      step: of its checkpoint.
      taken: recorded overrides.
      typed: keys that are typed again, which win.
    """
    named = [*typed, *(key_of(one) for one in taken)]
    kept = []
    for name, value in runs.earlier_defaults(run, step).items():
        group = name.partition(".")[0]
        may_be_typed = name in named or group in typed or "experiment" in typed
        if not may_be_typed and (key != "run" or group == "model"):
            kept.append(f"{name}={value}")
    return kept


def restarted(config: RunConfig, command: Sequence[str]) -> RunConfig:
    """Returns the config of a job that may be queued again: where it was, it goes on with the run that it began.

    The same command line has begun that run, so it wins over what that says to resume or to branch from.

    Args:
      config: checked, with `cluster.requeue`.
      command: the overrides as typed.

    Raises:
      ConfigError: Slurm would not queue the job again.
      SystemExit: that run has finished.
    """
    job = requeue.job()
    team = current()
    if job is None:
        return config

    def find() -> list[Any]:
        requeue.check(job)
        run = runs.of_job(folder_of(config.trainer.checkpoint), job, command) if job.restarts else None
        return [run.folder.as_posix(), bool(run.record.get("finished"))] if run else ["", False]

    folder, finished = team.broadcast("the run that the job goes on with", find)
    if finished:
        if team.is_first:
            print(f"job {job.name} has finished this run before it was queued again: {folder}", flush=True)
        raise SystemExit(0)
    return replace(config, resume=folder, branch=None) if folder else config


def without(overrides: object, keys: Sequence[str]) -> object:
    """Returns recorded overrides without those of keys that are typed again, and without keys under those."""
    if not isinstance(overrides, list):
        return overrides
    return [
        renamed.argument(str(one))
        for one in overrides
        if not any(f"{key_of(renamed.argument(str(one)))}.".startswith(f"{key}.") for key in keys)
    ]


def key_of(argument: str) -> str:
    """Returns the key of an override; the argument itself where it is none."""
    return argument.lstrip("+~").partition("=")[0]


def value_of(arguments: Sequence[str], key: str) -> str:
    """Returns the last value given to a key; empty where there is none, or null."""
    values = [argument.partition("=")[2].strip("'\"") for argument in arguments if key_of(argument) == key]
    return "" if not values or values[-1] == "null" else values[-1]
