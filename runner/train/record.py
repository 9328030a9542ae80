"""The record of a command: its folder with the config, and the tracked run with its params and final status."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from runner.checkpoint.arguments import key_of
from runner.checkpoint.runs import SavedRun
from runner.cluster import lifecycle as processes
from runner.cluster.membership import membership
from runner.cluster.team import current as current_team
from runner.config.convert import as_typed, flatten
from runner.config.invocation import choices
from runner.config.schema import RunConfig, TaskConfig
from runner.console import Console
from runner.errors import EngineError, Interrupted, TrackingError
from runner.host.outputs import required, warn
from runner.host.signals import current, interruption
from runner.host.terminal import incomplete
from runner.layout import mesh
from runner.task import metrics
from runner.task.registry import metric_directions
from runner.tracking import RunSpec, Status, Tracker, open_tracker
from runner.tracking.base import ENDED as ENDED
from runner.tracking.location import run_name

logger = logging.getLogger(__name__)

CONFIG = "config.yaml"

# The tag of a run that says which of its logs lack text, and why.
INCOMPLETE = "runner.incomplete_logs"
_DEFAULT_LAYOUT = "replicated"
_LISTED_GROUPS = ("model", "mesh", "layout", "engine", "dataset", "task", "optimizer")
_TAGGED_GROUPS = ("model", "layout", "engine", "dataset", "experiment")
# One of these sets the length of a run.
_LENGTH_KEYS = ("trainer.epochs", "trainer.steps", "trainer.tokens")
_LISTED_KEYS = (
    "dataset.batch_size",
    "engine.precision",
    "optimizer.learning_rate",
    "optimizer.schedule.name",
    "trainer.accumulate_steps",
    *_LENGTH_KEYS,
    "trainer.seed",
)
# A builder's first options are its sizes; a page with all of a transformer's would hide what matters in every run.
_LISTED_MODEL_KEYS = 5


@dataclass(frozen=True)
class Verdict:
    """A verification that is not recorded yet.

    Attributes:
      failure: why a run must not train; empty if it may. All processes have the same.
      record: records it in an open run, given the run's folder, its tracker and a console; raises `EngineError` if
        there is a failure.
    """

    failure: str
    record: Callable[[Path, Tracker, Console], None]


def with_config(content: dict[str, object]) -> Path:
    """Writes a command's resolved config into its folder, which Hydra made, and returns the folder."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    with required(folder):
        (folder / CONFIG).write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    return folder


def open_run(
    config: RunConfig, content: Mapping[str, object], command: str, prefix: str = "", continued: SavedRun | None = None
) -> Tracker:
    """Starts a tracked run with `listed_params` of the config; `content` is the same resolved.

    A run whose name has a prefix is not a training run. `continued` is the run to continue; None: a new run.
    """
    options = choices()
    typed_keys = list(map(key_of, as_typed(HydraConfig.get().overrides.task)))
    directions = metric_directions(config.task)
    tags = {metrics.TAG: json.dumps(directions)}
    for group in _TAGGED_GROUPS:
        if group in options:
            tags[f"runner.{group}"] = options[group]
    # As in the params: an option's axes may have been changed.
    tags["runner.mesh"] = mesh.describe(config.mesh.axes)
    name = config.name or run_name() or _name(config.task.name, config.dataset.batch_size, options, typed_keys)
    identity = config.name or ""
    tracking_id = None
    if continued is not None:
        identity = identity or continued.id
        tracking_id = continued.tracking_id
    spec = RunSpec(
        prefix + name,
        listed_params(content, options, typed_keys),
        tags,
        config=dict(flatten(content)),
        description=f"`{command}`",
        identity=identity,
    )
    if not prefix:
        spec = replace(spec, metrics=directions)
    sweep = membership()
    if sweep is not None:
        spec = replace(spec, name=sweep.name, tags=tags | sweep.tags, parent_run_id=sweep.parent_run_id)
    folder = Path(HydraConfig.get().runtime.output_dir)
    return open_tracker(config.tracking, spec, folder, resume_run_id=tracking_id)


def listed_params(
    content: Mapping[str, object], options: Mapping[str, str], typed_keys: Sequence[str]
) -> dict[str, object]:
    """Returns the params that a run's page lists: those that distinguish runs at a glance. config.yaml has all."""
    flat = dict(flatten(content))
    mesh_content = content.get("mesh", {})
    assert isinstance(mesh_content, Mapping)
    listed: dict[str, object] = {}
    for group in _LISTED_GROUPS:
        if group in options:
            listed[group] = options[group]
    listed["mesh"] = mesh.describe(mesh_content.get("axes", {}))
    model_keys = [key for key in flat if key.startswith("model.")]
    after_builder = model_keys[1 : 1 + _LISTED_MODEL_KEYS]  # the first key is the builder's path
    for key in (*_LISTED_KEYS, *after_builder):
        is_unused_length = key in _LENGTH_KEYS and flat.get(key) is None
        if key in flat and not is_unused_length:
            listed[key] = flat[key]
    # What was typed, and what is below it; a group of which an option was typed is listed by that.
    typed = tuple(f"{key}." for key in typed_keys if "." in key)
    for key, value in flat.items():
        if f"{key}.".startswith(typed):
            listed[key] = value
    return listed


def _name(task: str, batch_size: int, options: Mapping[str, str], typed_keys: Sequence[str]) -> str:
    """Returns a run's name, short enough for lists and legends: model and mesh, and what differs from most runs."""
    parts = [options["model"]]
    if task != TaskConfig.name:
        parts.append(options["task"])
    parts.append(options["mesh"])
    if options["layout"] != _DEFAULT_LAYOUT:
        parts.append(options["layout"])
    if "dataset.batch_size" in typed_keys:
        parts.append(f"b{batch_size}")
    return "-".join(parts)


@contextmanager
def recorded(tracker: Tracker, console: Console) -> Iterator[Tracker]:
    """Finishes the tracked run with the status that its body ended with, and prints where the run can be seen.

    Raises:
      TrackingError: the body ended well, and something that it recorded is lost.
    """
    status: Status = "FAILED"

    def end_from_another_thread(reason: str, signum: int | None) -> None:
        """Ends the run for a lost process, while the main thread waits for it in a collective."""
        tracker.set_tags({ENDED: reason})
        tracker.finish("KILLED" if signum else "FAILED", in_haste=True)

    team = current_team()
    forget = team.on_end(end_from_another_thread)
    try:
        current().raise_if_requested()  # a signal may have come while the run was opened
        with processes.explained():
            yield tracker
        # A process that was lost or stopped may have had something to do: then the run has not finished.
        team.finish()
        current().raise_if_requested()
        status = "FINISHED"
    except BaseException as error:
        signum = interruption(error)
        if signum is not None:
            status = "KILLED"
            unsaved = ""
            if isinstance(error, Interrupted):
                unsaved = error.unsaved
            tracker.set_tags({ENDED: str(Interrupted(signum, unsaved))})
            console.print(_interrupted_line(tracker, unsaved), soft_wrap=True)
        elif isinstance(error, EngineError):
            tracker.set_tags({ENDED: str(error)})
        raise
    finally:
        team.begin_leaving()
        forget()
        lines = incomplete()
        if lines:
            tracker.set_tags({INCOMPLETE: "; ".join(lines)})
        is_complete = tracker.finish(status)
        for line in lines:
            logger.warning("%s", line)
            warn(line)
        for line in tracker.describe():
            console.print(line, soft_wrap=True, markup=False)
    if not is_complete:
        no_room = (
            "neither the tracking store nor the run's folder could be written; free disk space, then "
            f"resume={tracker.run_id} records the points again"
        )
        raise TrackingError(f"run {tracker.run_id} is not recorded completely: {tracker.lost or no_room}")


def _interrupted_line(tracker: Tracker, unsaved: str) -> str:
    parts = ["metrics up to the last step are kept", unsaved, "the run's status is KILLED"]
    if not tracker.run_id:
        parts = ["nothing is tracked", unsaved]
    return f"interrupted: {', '.join(filter(None, parts))}"
