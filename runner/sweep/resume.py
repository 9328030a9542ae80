"""`sweep.resume=<parent|latest>`: the recorded command line again, without the jobs that are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from runner.config.build import build
from runner.config.compose import compose
from runner.config.schema import TrackingConfig
from runner.config.search_path import searchpath
from runner.errors import ConfigError
from runner.host.late import late
from runner.training.checkpoint.arguments import MULTIRUN, key_of, value_of, without
from runner.training.checkpoint.recorded import Record

if TYPE_CHECKING:
    from mlflow.entities import Run

    from runner.sweep import parent
    from runner.tracking import sweeps
    from runner.training.checkpoint import resume, runs
else:
    parent = late("runner.sweep.parent")
    sweeps = late("runner.tracking.sweeps")
    resume = late("runner.training.checkpoint.resume")
    runs = late("runner.training.checkpoint.runs")

_KEY = "sweep.resume"


def expand(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with what the sweep that it resumes was started with.

    A key that is typed again wins over the recorded one.

    Args:
      arguments: as typed, without the program.

    Raises:
      ConfigError: there is no such sweep, or its record sets what a record may not set.
      TrackingError: the store can't be used.
    """
    if not (wanted := value_of(arguments, _KEY)):
        return list(arguments)
    typed = [one for one in arguments if key_of(one) != _KEY and one not in MULTIRUN]
    chosen = [one for one in typed if key_of(one).split(".")[0] in ("tracking", "experiment")]
    config = _tracking([*chosen, *searchpath(typed)])
    if config.name == "none":
        raise ConfigError(f"{_KEY}={wanted}: tracking=none keeps no sweep; drop one of the two")
    store = sweeps.open_tracking(config)
    named = any(key_of(one) in ("tracking.experiment", "experiment") for one in typed)
    run = sweeps.find(store, wanted, [store.experiment_id] if named else [])
    record = Record(_KEY, run.info.run_id, parent.is_own(run))
    left = [one for one in parent.recorded_arguments(run) if one not in MULTIRUN]
    recorded = record.checked(without(left, [key_of(one) for one in typed]))
    return ["-m", *recorded, *typed, f"{_KEY}={run.info.run_id}"]


def checkpoint_overrides(run: Run, content: Mapping[str, object], checkpoints: Path) -> list[str]:
    """Returns what makes a job go on from the checkpoint of its earlier run, instead of from the start.

    Args:
      run: the job's earlier, unfinished run.
      content: the job's resolved config.
      checkpoints: where runs keep their checkpoints.

    Returns:
      Overrides to add to the job's own; none where the run left no checkpoint that the job can go on from.
    """
    try:
        found, _ = runs.find("resume", run.info.run_id, checkpoints)
        resume.check_order(runs.open_checkpoint("resume", found, None), content)
    except ConfigError:
        return []
    return [f"resume='{found.folder.as_posix()}'"]


def _tracking(overrides: list[str]) -> TrackingConfig:
    content = OmegaConf.to_container(compose(overrides).tracking, resolve=True)
    assert isinstance(content, dict)
    return build(TrackingConfig, {str(key): value for key, value in content.items()}, "tracking")
