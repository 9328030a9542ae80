"""Runs with a name: `resume=auto name=<name>` begins the run, or continues it, with the same command line each time.

The folder of the run's checkpoints has the run's name, so every start finds it without a search. Of several starts at
once, one takes the lock on that folder, which the kernel (or the server of a network file system) frees when the
process ends. A file system without locks that reach other machines is the reason for the second test: the run's last
process is looked for, and where it can't be seen from here, the file of its attempt must have been silent for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from runner.checkpoint import (
    attempts,
    runs,
    storage,
)
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.files import DamagedError
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import SavedRun
from runner.config.schema import RunConfig
from runner.errors import ConfigError, invalid
from runner.host.stores.urls import Place

_KEY = "name"


def folder(config: RunConfig) -> Place:
    """Returns the folder of a named run's checkpoints."""
    assert config.name is not None
    return folder_of(config.trainer.checkpoint) / config.name


def take(config: RunConfig, locks: ExitStack, say: Callable[[str], object]) -> SavedRun | None:
    """Takes a named run for this process.

    Args:
      config: checked, with `resume=auto`.
      locks: gets the lock on the run.
      say: is called with one line before a wait.

    Returns:
      The run as its last attempt left it, which may have no checkpoint; None: there is no such run yet.

    Raises:
      ConfigError: another process has the run, the folder is another run's, or the run's record is damaged.
    """
    place = folder(config)
    locks.enter_context(runs.locked(_KEY, SavedRun(place, {"run": config.name})))
    run = runs.begun(_KEY, place)
    if run is None:
        return None
    if run.record.get(_KEY) != config.name:
        problem = f"{place} has the checkpoints of run {run.id}, which has another name"
        raise invalid(_KEY, config.name, problem=problem, fix="choose another name")
    try:
        runs.check_not_running(_KEY, run)
    except ConfigError:
        # The last process is another machine's. Locks may not reach that machine, but its writes do.
        if not attempts.is_silent(place, say):
            # It may have come to its end during the wait, and has then said so in the record.
            run = runs.begun(_KEY, place)
            if run is not None:
                runs.check_not_running(_KEY, run)
    return run


def tracked_id(config: RunConfig) -> str | None:
    """Returns the id in the tracking store of a named run that an earlier attempt has begun; None: there is none.

    It is for an attempt that was killed before its first checkpoint: the next one records into the same run.

    Raises:
      ConfigError: the run's record is damaged.
    """
    if config.name is None:
        return None
    run = runs.begun(_KEY, folder(config))
    if run is None:
        return None
    return run.tracking_id


def last_whole(run: SavedRun, say: Callable[[str], object]) -> Checkpoint | None:
    """Returns the last checkpoint of a run that is whole; None: the run has saved none.

    Args:
      run: locked.
      say: is called with one line for each checkpoint that is skipped because it is damaged.

    Raises:
      ConfigError: every checkpoint is damaged, in which case the error is that of the last one; or one is of a newer
        format.
    """
    first_error: ConfigError | None = None
    for step in reversed(storage.steps(run.folder)):
        try:
            checkpoint = runs.open_checkpoint("resume", run, step)
        except ConfigError as error:
            if not isinstance(error.__cause__, DamagedError):
                # Of a newer format: the steps after an earlier checkpoint are not lost.
                raise
            first_error = first_error or error
            continue
        if first_error is not None:
            say(f"warning: {first_error}; continuing from step {step}")
        return checkpoint
    if first_error is not None:
        raise first_error
    return None
