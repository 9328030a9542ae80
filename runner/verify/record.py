"""Verifies and records: as a command with a run of its own, or as the first act of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from runner.checks import warnings as cautions
from runner.config import typed
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import Dataset
from runner.engine import devices, registry
from runner.errors import EngineError
from runner.host import stages
from runner.host.outputs import required
from runner.host.signals import heard
from runner.plan.table import plan_console
from runner.processes.team import current
from runner.record.tracked import open_run, recorded
from runner.tracking import Tracker
from runner.verify.check import verify
from runner.verify.children import WORKER


def run(config: RunConfig, composed: DictConfig, worker: str = WORKER) -> None:
    """Verifies a config, prints the table and records it all in a run of its own.

    Args:
      config: checked.
      composed: the same as Hydra composed it, for the record.
      worker: module that the processes run.

    Raises:
      EngineError: the mesh differs from one device, is inconclusive and that is not allowed, or a process failed; the
        run is recorded as FAILED.
      ConfigError, DataError, TrackingError, Interrupted: as in training.
    """
    console = plan_console()
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(config, composed)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    for line in devices.line(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    for warning in cautions.of_config(config):
        console.print(f"warning: {warning}", soft_wrap=True, markup=False)
    with heard():
        registry.prepare_alone(config)
        data = loading.load_run(config)
        command = typed.command("runner.verify")
        team = current()
        opened = open_run(config, content, command, "verify-") if team.is_first else Tracker()
        with recorded(opened, console) as tracker:
            tracker.log_artifact(folder / "config.yaml")
            verify_recorded(config, content, data, folder, tracker, console, worker)


def verify_recorded(
    config: RunConfig,
    content: Mapping[str, object],
    data: Dataset,
    folder: Path,
    tracker: Tracker,
    console: Console,
    worker: str = WORKER,
) -> None:
    """Verifies a config into a run that is open.

    Args:
      config: checked.
      content: the same resolved, as plain values.
      data: the config's dataset.
      folder: gets verify.json, verify.md and the processes' output.
      tracker: gets those files, the figures, and the tag `runner.verified`.
      console: shows the table and the verdict.
      worker: module that the processes run.

    Raises:
      EngineError: the mesh differs from one device, is inconclusive and that is not allowed, or a process failed.
      ConfigError: a process refused the config.
    """
    count = current().count
    against = config.against
    engines = f" with {config.engine.name} and with {against.engine}" if against.engine else ""
    engines += f" in {count} processes" if count > 1 else ""
    engines += " and in one" if against.processes else ""
    with stages.stage(f"verify: {config.verify.steps} steps on one device, then on the mesh{engines}"):
        report = verify(config, data, folder, worker)
    if report is None:
        if why := current().broadcast("the verdict", str):
            raise EngineError(why)
        return
    for path in report.write(folder, content):
        tracker.log_artifact(path)
    verified = report.outcome == "verified"
    tracker.set_tags({"runner.verified": str(verified).lower(), "runner.verdict": report.outcome})
    tracker.log_metrics(0, report.metrics())
    console.print(report.table(console.width))
    console.print(report.basis(), soft_wrap=True, markup=False)
    failed = report.outcome == "mismatch" or not (verified or config.verify.allow_inconclusive)
    current().broadcast("the verdict", lambda: report.verdict() if failed else "")
    if failed:
        raise EngineError(report.verdict())
    console.print(report.verdict(), soft_wrap=True, markup=False)
