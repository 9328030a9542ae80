"""The tracked run: how it is opened, and the status that it ends with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from rich.console import Console

from runner.config.convert import as_typed, choices, flatten
from runner.config.schema import RunConfig, TaskConfig
from runner.errors import EngineError, Interrupted, TrackingError
from runner.host.signals import current, interruption
from runner.layout import mesh
from runner.processes import begin as processes
from runner.record.listed import listed
from runner.sweep import member
from runner.sweep.identity import CODE_TAG, CONFIG_TAG, code_version, config_hash
from runner.task import metrics
from runner.task.registry import metric_directions
from runner.tracking import Status, Tracker, open_tracker
from runner.tracking.page import ENDED as ENDED
from runner.tracking.page import Page
from runner.training.checkpoint.arguments import key_of

_USUAL_LAYOUT = "replicated"
_TOLD = ("sweep", "plan", "verify", "evaluate", "export")  # groups that say nothing of a run


def open_run(
    config: RunConfig, content: Mapping[str, object], command: str, prefix: str = "", resume_run_id: str | None = None
) -> Tracker:
    """Starts a tracked run with the config as its params.

    Args:
      config: checked.
      content: the same resolved, as plain values.
      command: what was typed.
      prefix: of the run's name, which is made of model, mesh and layout where the config gives none.
      resume_run_id: a run that goes on; null: a new one.
    """
    chosen = choices()
    typed = [key_of(one) for one in as_typed(HydraConfig.get().overrides.task)]
    tags = {f"runner.{group}": choice for group, choice in chosen.items() if group not in _TOLD}
    tags[CONFIG_TAG] = config_hash(content)
    tags[metrics.TAG] = json.dumps(metric_directions(config.task))
    if not prefix:  # a training run, which can stand for another of the same config
        tags[CODE_TAG] = code_version(config)
    sweep = member.membership()
    tracker = open_tracker(
        config.tracking,
        run_name=sweep.name if sweep else prefix + _name(config, chosen, typed),
        params=dict(flatten(content)) | {"run.command": command},
        tags=tags | (sweep.tags() if sweep else {}),
        listed=listed(content, chosen, typed),
        resume_run_id=resume_run_id,
        parent_run_id=sweep.parent() if sweep else None,
        folder=Path(HydraConfig.get().runtime.output_dir),
    )
    _begin_page(tracker.page, config, chosen, command)
    tracker.show_page()
    return tracker


def _name(config: RunConfig, chosen: Mapping[str, str], typed: Sequence[str]) -> str:
    """Returns a run's name, short enough for lists and legends: model and mesh, and what is not as it mostly is."""
    of_task = [] if config.task.name == TaskConfig.name else [chosen["task"]]
    layout = [] if chosen["layout"] == _USUAL_LAYOUT else [chosen["layout"]]
    batch = [f"b{config.dataset.batch_size}"] if "dataset.batch_size" in typed else []
    return "-".join([chosen["model"], *of_task, chosen["mesh"], *layout, *batch])


def _begin_page(page: Page, config: RunConfig, chosen: Mapping[str, str], command: str) -> None:
    """Fills in what the config says."""
    evaluated = metric_directions(config.task)
    judged = metrics.default(evaluated)
    page.command = command
    page.task = config.task.name
    page.columns = tuple(dict.fromkeys((judged, *metrics.evaluated(evaluated))))
    kind = mesh.device_kind(config.mesh)
    count = mesh.size(config.mesh.axes)
    devices = f"{count} {'virtual CPU' if kind == 'cpu' else kind.upper()} device{'' if count == 1 else 's'}"
    page.facts["mesh"] = f"{mesh.describe(config.mesh.axes)} on {devices}, layout {chosen.get('layout', '')}"
    page.facts["trains"] = (
        f"{chosen.get('model', '')} on {chosen.get('dataset', '')}, {config.dataset.batch_size:,} examples a batch, "
        f"engine {config.engine.name}"
    )


@contextmanager
def recorded(tracker: Tracker, console: Console) -> Iterator[Tracker]:
    """Finishes the tracked run with the status that tells how its body ended, and says where the run can be seen.

    Raises:
      TrackingError: the body ended well, and something that it recorded is lost.
    """
    status: Status = "FAILED"
    kept = True

    def ended(why: str, signum: int | None) -> None:  # in another thread, as this one is stuck
        tracker.set_tags({ENDED: why})
        tracker.finish("KILLED" if signum else "FAILED", in_haste=True)

    taken_back = processes.on_end(ended)
    try:
        current().raise_if_requested()  # it may have come while the run was opened
        with processes.explained():
            yield tracker
        processes.finish_together()  # one that is gone, or stopped, may have had something to do yet
        current().raise_if_requested()
        status = "FINISHED"
    except BaseException as error:
        if (signum := interruption(error)) is not None:
            status = "KILLED"
            unsaved = error.unsaved if isinstance(error, Interrupted) else ""
            tracker.set_tags({ENDED: str(Interrupted(signum, unsaved))})
            lost = f", {unsaved}" if unsaved else ""
            told = f"metrics up to the last step are kept{lost}, the run's status is KILLED"
            console.print(f"interrupted: {told if tracker.run_id else f'nothing is tracked{lost}'}", soft_wrap=True)
        elif isinstance(error, EngineError):
            tracker.set_tags({ENDED: str(error)})
        raise
    finally:
        processes.begin_leaving()
        taken_back()
        kept = tracker.finish(status)
        for line in tracker.describe():
            console.print(line, soft_wrap=True, markup=False)
    if not kept:
        no_room = (
            f"neither the store nor any place for what it does not take could be written; make room, then "
            f"resume={tracker.run_id} records the points again"
        )
        raise TrackingError(f"not all of run {tracker.run_id} is recorded: {tracker.lost or no_room}")
