"""Verification: starts the process that compares the sides, and records the verdict.

As a command it has its own run; otherwise it is the first part of a training run.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner.checkpoint.arguments import folder_of
from runner.cluster.launch import free_port
from runner.cluster.member import Member
from runner.cluster.place import Place
from runner.cluster.team import Team, current
from runner.config import invocation
from runner.config.convert import resolved
from runner.config.schema import RunConfig, VerifyConfig
from runner.console import Console
from runner.engine import devices, registry
from runner.errors import ConfigError, EngineError
from runner.host import stages
from runner.host.libraries import installed
from runner.host.outputs import spared
from runner.plan.checks import warnings as config_warnings
from runner.plan.table import plan_console
from runner.tracking import Tracker
from runner.tracking.records import figure_tags
from runner.train.record import CONFIG, Verdict, open_run, recorded, with_config
from runner.train.saved import open_saved
from runner.verify import parting, replay, script
from runner.verify.report import Verification, failure_of, from_fields
from runner.verify.worker import REQUEST, result_file

# The module of the child process; tests put another in its place.
WORKER = "runner.verify.worker"
LOG = "verify.log"
# A verdict is about these versions, which verify.json lists.
_PACKAGES = (*registry.distributions(), "numpy", "runner")

Compute = Callable[[Path, Path, Place | None], Verification | None]


def run(config: RunConfig, composed: DictConfig) -> None:
    """Verifies a config, prints the table and records it all in its own run; or looks at steps of a recorded run.

    Raises:
      EngineError: a mismatch, an inconclusive verdict that is not allowed, or a process failed; the run is recorded as
        FAILED.
      ConfigError, DataError, TrackingError, Interrupted: as in training.
    """
    if config.replay.script is not None:
        script.run(config.replay.script, config.verify, Path(HydraConfig.get().runtime.output_dir))
        return
    if config.replay.against is not None:
        saved = open_saved(config.run, config.trainer.checkpoint, "runner.verify")
        parting.run(saved.run, config.replay.against, folder_of(config.trainer.checkpoint.folder))
        return
    if config.replay.step is not None:
        replay.run(config, composed)
        return
    console = plan_console()
    content = resolved(composed, config.mesh, config.tracking.uri)
    folder = with_config(content)
    console.print_lines(devices.device_lines(config, composed))
    console.print_lines(f"warning: {warning}" for warning in config_warnings.of_config(config.mesh, config.cluster))
    command = invocation.command("runner.verify")
    # Process 0 alone records; a plain `Tracker` drops what it gets.
    opened = open_run(config, content, command, "verify-") if current().is_first else Tracker()
    with recorded(opened, console) as tracker:
        tracker.log_artifact(folder / CONFIG)
        computed(asdict(config), config.verify, folder).record(folder, tracker, console)


def computed(
    content: Mapping[str, object], options: VerifyConfig, folder: Path, compute: Compute | None = None
) -> Verdict:
    """Verifies a checked config, given as plain values, and records nothing; `compute`: None is `run_child`.

    Raises:
      ConfigError: the config is invalid for the model, the layout or the dataset.
      EngineError: the process failed, or the two sides don't have the same variables.
    """
    team = current()
    title = f"verify: {options.steps} steps on one device, then on the mesh"
    if team.count > 1:
        title += f" in {team.count} processes"
    with stages.stage(title), ExitStack() as stack:

        def shared() -> str:
            # Several processes may be on several machines: of these, the run's folder is the one that all of them
            # reach.
            parent = None if team.count == 1 else folder
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="runner-verify-", dir=parent))
            (Path(name) / REQUEST).write_text(json.dumps(content))
            return str(Path(name).absolute())

        files = Path(team.broadcast("verify's folder", shared))
        report = (compute or run_child)(files, folder / LOG, _child_place(team))
        # Process 0 removes the folder, so each process reads its result before.
        team.all_gather("verify's results", True)
    # Process 0 has the verdict. The others fail with its line, so that no process trains on.
    failure = team.broadcast("the verdict", lambda: failure_of(options, report))
    return Verdict(failure, partial(_record, report, failure))


def _record(report: Verification | None, failure: str, folder: Path, tracker: Tracker, console: Console) -> None:
    """Records a verification in an open run: verify.json, the figures, and the tags `runner.verified` and
    `runner.verdict`.

    There is no report in a process that is not the first of several. `failure` says why the run must not train.

    Raises:
      EngineError: a mismatch, or an inconclusive verdict that is not allowed.
    """
    if report is not None:
        with spared(f"verify.json in {folder}"):
            tracker.log_artifact(report.write(folder, installed(_PACKAGES)))
        is_verified = report.verdict == "verified"
        tags = {"runner.verified": str(is_verified).lower(), "runner.verdict": report.verdict}
        tracker.set_tags(tags | figure_tags(report.figures()))
        console.print(report.table(console.width))
        console.print_lines([report.basis(), *(f"warning: {warning}" for warning in report.warnings)])
    if failure:
        raise EngineError(failure)
    if report is not None:
        console.print_lines([report.line()])


def _child_place(team: Team) -> Place | None:
    """Returns the place of this process's child among several; None: there is one process."""
    if not isinstance(team, Member):
        return None
    # The children are a cluster of their own, with a port and a secret that process 0 chooses.
    own = (team.address, free_port(team.address), secrets.token_hex(16))
    address = team.broadcast("verify's processes", lambda: own)
    return Place(team.index, team.count, *address)


def run_child(folder: Path, log: Path, place: Place | None) -> Verification | None:
    """Verifies the config in a folder, in a child whose output goes to a log; None: another process has the result.

    Raises:
      ConfigError: the config is invalid for one side.
      EngineError: a side failed, or the child ended without a result.
    """
    # This process may have prepared its own environment for an engine; the child prepares another.
    environment = registry.environment_for_children()
    if place is not None:
        environment = {**environment, **place.environment()}
    with log.open("wb") as output:
        # Nothing is ever written to the child's stdin. It closes when this process ends, and the child ends then too.
        child = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(folder)],
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    try:
        code = child.wait()
    finally:
        child.kill()
        child.wait()
    file = result_file(folder, place)
    if not file.exists():
        end = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        raise EngineError(f"verify's process {end}; its output is in {log}")
    result = json.loads(file.read_text())
    if "invalid" in result:
        raise ConfigError(result["invalid"])
    if "failed" in result:
        raise EngineError(f"{result['failed']} (verify's process; its output is in {log})")
    fields = result["verification"]
    if fields is None:
        return None
    return from_fields(fields)
