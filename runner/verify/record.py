"""Verification: makes the batches, runs the sides, compares their arrays, and records the verdict.

As a command it has its own run; otherwise it is the first part of a training run.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from omegaconf import DictConfig
from rich.console import Console

from runner.checkpoint.arguments import folder_of
from runner.cluster.launch import free_port
from runner.cluster.member import Member
from runner.cluster.place import Place
from runner.cluster.team import Team, current
from runner.config import compose
from runner.config.convert import resolved
from runner.config.schema import EngineConfig, MeshConfig, RunConfig, VerifyConfig
from runner.data import loading
from runner.data.base import Dataset
from runner.engine import devices, registry
from runner.errors import EngineError
from runner.host import cores, stages
from runner.host.outputs import spared
from runner.host.signals import heard
from runner.layout import mesh
from runner.plan.checks import warnings as config_warnings
from runner.plan.table import plan_console
from runner.tracking import Tracker
from runner.train.record import CONFIG, Verdict, open_run, recorded, with_config
from runner.train.saved import open_saved
from runner.verify import parting, replay
from runner.verify.children import PERTURBED, SideResult, run_children
from runner.verify.compare import FROM_THE_START, compare
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request
from runner.verify.rounding import noise_of_sums, storage_rounding

# The order in which the sides start.
SIDES = ("reference", "mesh")


def run(config: RunConfig, composed: DictConfig) -> None:
    """Verifies a config, prints the table and records it all in its own run; or looks at steps of a recorded run.

    Raises:
      EngineError: a mismatch, an inconclusive verdict that is not allowed, or a process failed; the run is recorded as
        FAILED.
      ConfigError, DataError, TrackingError, Interrupted: as in training.
    """
    if config.replay.against is not None:
        saved = open_saved(config, "runner.verify")
        parting.run(saved.run, config.replay.against, folder_of(config.trainer.checkpoint))
        return
    if config.replay.step is not None:
        replay.run(config, composed)
        return
    console = plan_console()
    content = resolved(config, composed)
    folder = with_config(content)
    for line in devices.device_lines(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    for warning in config_warnings.of_config(config.mesh, config.cluster):
        console.print(f"warning: {warning}", soft_wrap=True, markup=False)
    with heard():
        registry.prepare_alone(config)
        data = loading.load(config.dataset, config.trainer.seed, task=config.task)
        command = compose.command("runner.verify")
        team = current()
        # Process 0 alone records; a plain `Tracker` drops what it gets.
        opened = open_run(config, content, command, "verify-") if team.is_first else Tracker()
        with recorded(opened, console) as tracker:
            tracker.log_artifact(folder / CONFIG)
            computed(config, data, folder).record(folder, tracker, console)


def computed(config: RunConfig, data: Dataset, folder: Path) -> Verdict:
    """Verifies a config, and records nothing.

    Raises:
      EngineError: a process failed.
      ConfigError: the config is invalid for a process.
    """
    title = f"verify: {config.verify.steps} steps on one device, then on the mesh"
    if current().count > 1:
        title += f" in {current().count} processes"
    with stages.stage(title):
        report = verify(config, data, folder)
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
    folder: Path,
    tracker: Tracker,
    console: Console,
) -> None:
    """Records a verification in an open run: verify.json, the figures, and the tags `runner.verified` and
    `runner.verdict`.

    There is no report in a process that is not the first of several. `failure` says why the run must not train.

    Raises:
      EngineError: a mismatch, or an inconclusive verdict that is not allowed.
    """
    if report is not None:
        with spared(f"verify.json in {folder}"):
            tracker.log_artifact(report.write(folder))
        is_verified = report.verdict == "verified"
        tracker.set_tags({"runner.verified": str(is_verified).lower(), "runner.verdict": report.verdict})
        tracker.log_metrics(0, report.metrics())
        console.print(report.table(console.width))
        console.print(report.basis(), soft_wrap=True, markup=False)
    if failure:
        raise EngineError(failure)
    if report is not None:
        console.print(report.line(), soft_wrap=True, markup=False)


def verify(config: RunConfig, data: Dataset, folder: Path) -> Verification | None:
    """Trains the config's first steps on one device and on its mesh, in two processes, and compares them.

    If nothing but the training from the start differs, whose weights may be at a kink, one device runs several times
    as many perturbed runs before the difference is reported. A process that is not the first of several only takes
    part.

    Raises:
      ConfigError: the config is invalid for the model, the layout or the dataset.
      EngineError: a process failed, or the two sides don't have the same variables.
    """
    team = current()
    if not team.is_first:
        shared = _shared_folder(team)
        places = _child_places(team)
        run_children(list(places), shared, folder, places=places)
        return None
    axes = mesh.describe(config.mesh.axes)
    # Several processes may be on several machines: of these, the run's folder is the one that all of them reach.
    parent = None if team.count == 1 else folder
    with tempfile.TemporaryDirectory(prefix="runner-verify-", dir=parent) as name:
        shared = Path(name).absolute()
        write_request(shared, make_request(config, data))
        _shared_folder(team, shared)
        places = _child_places(team)
        results = run_children(SIDES, shared, folder, _concurrency(config.mesh), places)
        verification = compare_sides(config.engine, shared, results, axes, config.verify.steps)
        failed_kinds = {check.kind for check in verification.failed}
        if failed_kinds and failed_kinds <= FROM_THE_START:
            run_children([PERTURBED], shared, folder)
            verification = compare_sides(config.engine, shared, results, axes, config.verify.steps)
        return verification


def _shared_folder(team: Team, folder: Path | None = None) -> Path:
    """Returns the folder of the verification, of which process 0 tells the others."""
    return Path(team.broadcast("verify's folder", lambda: str(folder)))


def _child_places(team: Team) -> dict[str, Place]:
    """Returns, by side that computes in several processes, which the mesh does, the place of this process's child."""
    if not isinstance(team, Member):
        return {}
    # The children are a cluster of their own, with a port and a secret that process 0 chooses.
    own = (team.address, free_port(team.address), secrets.token_hex(16))
    address = team.broadcast("verify's processes", lambda: own)
    return {"mesh": Place(team.index, team.count, *address)}


def _concurrency(config: MeshConfig) -> int:
    """Returns how many sides run at a time.

    On CPUs with more than one core two do: the mesh's program is compiled while one device still trains. On
    accelerators the sides would compete for their memory.
    """
    return 2 if mesh.device_kind(config) == "cpu" and cores.available() > 1 else 1


def compare_sides(
    config: EngineConfig, folder: Path, results: Mapping[str, SideResult], axes: str, steps: int
) -> Verification:
    """Compares the arrays that the sides left in their folder, on a mesh of axes in words.

    Raises:
      EngineError: the loss on one device is NaN or Inf, or the sides don't have the same variables.
    """
    reference = read_arrays(folder / "reference.npz")
    spread = read_arrays(folder / "spread.npz")
    result = results["reference"]
    precision = result.get("precision", config.precision)
    bad = np.flatnonzero(~np.isfinite(reference["loss"]))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {reference['loss'][bad[0]]} at step {bad[0] + 1}, so later "
            "steps can't be compared; lower optimizer.learning_rate or verify.steps"
        )
    sums = noise_of_sums(result["terms"], precision)
    storage = storage_rounding(config.state)
    try:
        checks = compare(reference, spread, read_arrays(folder / "mesh.npz"), result["noise"], sums, storage)
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    return Verification(
        checks=tuple(checks),
        steps=len(reference["loss"]),
        mesh=axes,
        terms=result["terms"],
        noise=result["noise"],
        precision=precision,
        storage=storage,
        requested_steps=steps,
    )
