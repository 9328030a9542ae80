"""Recorded verification: as a command with its own run, or as the first part of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from runner.checks import warnings as config_warnings
from runner.config import typed
from runner.config.convert import resolved
from runner.config.schema import RunConfig, VerifyConfig
from runner.data import loading
from runner.data.base import Dataset
from runner.engine import devices, registry
from runner.errors import EngineError
from runner.host import stages
from runner.host.outputs import spared
from runner.host.signals import heard
from runner.plan.table import plan_console
from runner.processes.team import current
from runner.record import CONFIG, Verdict, open_run, recorded, with_config
from runner.tracking import Tracker
from runner.verify import replay
from runner.verify.check import verify
from runner.verify.children import WORKER
from runner.verify.report import Verification


def run(config: RunConfig, composed: DictConfig, worker: str = WORKER) -> None:
    """Verifies a config, prints the table and records it all in its own run; or looks at steps of a recorded run.

    Args:
      config: checked.
      composed: the same as Hydra composed it, for the record.
      worker: module that the processes run.

    Raises:
      EngineError: a mismatch, an inconclusive verdict that is not allowed, or a process failed; the run is recorded as
        FAILED.
      ConfigError, DataError, TrackingError, Interrupted: as in training.
    """
    if config.replay.step is not None or config.replay.against is not None:
        replay.run(config, composed)
        return
    console = plan_console()
    content = resolved(config, composed)
    folder = with_config(content)
    for line in devices.device_lines(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    for warning in config_warnings.of_config(config):
        console.print(f"warning: {warning}", soft_wrap=True, markup=False)
    with heard():
        registry.prepare_alone(config)
        data = loading.load_run(config)
        command = typed.command("runner.verify")
        team = current()
        # Process 0 alone records; a plain `Tracker` drops what it gets.
        opened = open_run(config, content, command, "verify-") if team.is_first else Tracker()
        with recorded(opened, console) as tracker:
            tracker.log_artifact(folder / CONFIG)
            computed(config, data, folder, worker).record(content, folder, tracker, console)


def computed(config: RunConfig, data: Dataset, folder: Path, worker: str = WORKER) -> Verdict:
    """Verifies a config, and records nothing.

    Args:
      config: checked.
      data: the config's dataset.
      folder: gets the processes' output.
      worker: module that the processes run.

    Raises:
      EngineError: a process failed.
      ConfigError: the config is invalid for a process.
    """
    with stages.stage(_stage_title(config.verify)):
        report = verify(config, data, folder, worker)
    # Process 0 has the verdict. The others fail with its line, so that no process trains on.
    failure = current().broadcast("the verdict", lambda: _failure(config.verify, report))
    return Verdict(failure, partial(_record, report, failure))


def _failure(config: VerifyConfig, report: Verification | None) -> str:
    if report is None or report.verdict == "verified":
        return ""
    is_allowed = report.verdict == "inconclusive" and config.allow_inconclusive
    return "" if is_allowed else report.line()


def _record(
    report: Verification | None,
    failure: str,
    content: Mapping[str, object],
    folder: Path,
    tracker: Tracker,
    console: Console,
) -> None:
    """Records a verification in an open run.

    Args:
      report: of the verification; None in a process that is not the first of several.
      failure: why the run must not train; empty if it may.
      content: the config resolved, as plain values.
      folder: gets verify.json.
      tracker: gets that file, the figures, and the tags `runner.verified` and `runner.verdict`.
      console: shows the table and the verdict.

    Raises:
      EngineError: a mismatch, or an inconclusive verdict that is not allowed.
    """
    if report is not None:
        with spared(f"verify.json in {folder}"):
            tracker.log_artifact(report.write(folder, content))
        is_verified = report.verdict == "verified"
        tracker.set_tags({"runner.verified": str(is_verified).lower(), "runner.verdict": report.verdict})
        tracker.log_metrics(0, report.metrics())
        console.print(report.table(console.width))
        console.print(report.basis(), soft_wrap=True, markup=False)
    if failure:
        raise EngineError(failure)
    if report is not None:
        console.print(report.line(), soft_wrap=True, markup=False)


def _stage_title(config: VerifyConfig) -> str:
    title = f"verify: {config.steps} steps on one device, then on the mesh"
    count = current().count
    if count > 1:
        title += f" in {count} processes"
    return title
