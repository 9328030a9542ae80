"""Preparation of a run: the config is checked and the run's folder claimed before Hydra writes anything.

Hydra makes a run's folder, its own files and the log in it before it calls the program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, open_dict, read_write

from runner.checkpoint.arguments import key_of
from runner.cluster import accelerators, launch, membership, place, restarts
from runner.cluster import lifecycle as processes
from runner.cluster.team import current
from runner.config import short_keys
from runner.config.compose import directory, without_hydra
from runner.config.convert import flatten, resolved
from runner.config.hydra_keys import subfolder_problem
from runner.config.options import import_paths
from runner.config.quoting import quoted
from runner.config.schema import AUTO, ClusterConfig, MeshConfig, RunConfig
from runner.engine import devices, registry
from runner.errors import invalid
from runner.host import folders
from runner.host.libraries import installed
from runner.host.session import command_module
from runner.layout.mesh import size
from runner.plan.checks import hardware as checks_hardware
from runner.plan.checks import task as checks_task
from runner.plan.checks.run import convert
from runner.train.identity import code_version

LOG = "runner.log"
_OF_PROCESSES = "processes"  # in the run's folder: a folder for each process but the first
_RUN_DIR = "hydra.run.dir"
_RESUME = "resume"
_DATA_MODULE = "runner.data"  # shows a dataset, whatever its task would be
_MODULES_WITHOUT_A_MESH = ("runner.plan", "runner.advise", _DATA_MODULE)  # they start no processes and join none
_LIBRARIES = ("runner", *registry.distributions(), "jaxlib", "numpy")
# Keys whose values may differ between the processes of a run: each has its own, or process 0 alone reads them.
_KEYS_PER_PROCESS = ("cluster.index", "cluster.coordinator", "tracking.uri")


def prepare(composed: DictConfig, typed: Sequence[str] = ()) -> tuple[RunConfig, Path]:
    """Checks a run's config, composed with Hydra's own part, and claims its folder; returns both.

    It raises SystemExit if this process has started those that run the command, and they have ended.
    """
    module = command_module()
    config = convert(without_hydra(composed))
    if module == "runner" and config.run is not None:
        problem = "is for runner.verify, runner.evaluate, runner.generate and runner.export"
        raise invalid("run", config.run, problem=problem, fix=f"set resume={config.run} to continue training that run")
    checks_hardware.check_command(config.hardware, config.plan.compiler, config.advise.devices, module)
    short_keys.check_read(typed, command_module(""), verifies=config.trainer.verify_first)
    if module != _DATA_MODULE:
        checks_task.check(config)
    subdir = composed.hydra.output_subdir
    subdir_problem = subfolder_problem(subdir)  # of a preset too, whose keys of Hydra nothing has checked
    if subdir_problem is not None:
        raise invalid("hydra.output_subdir", subdir, problem=subdir_problem, fix="drop it")
    is_on_a_mesh = module not in _MODULES_WITHOUT_A_MESH
    if is_on_a_mesh and place.has_launcher(config.cluster) and place.from_launcher() is None:
        # The started processes claim the folder themselves. An error is known here before they have started.
        folders.check(_RUN_DIR, directory(composed, _RUN_DIR))
        command = _of_one_run(sys.orig_argv[1:], config.resume)
        lines = devices.device_lines(config, composed)
        raise SystemExit(_launched(config.cluster, config.mesh, command, lines))
    if is_on_a_mesh and place.find(config.cluster) is not None:
        processes.join(config.cluster, _what_processes_must_agree_on(config, composed))
        return config, _claimed_together(composed)
    return config, folders.claim(_RUN_DIR, directory(composed, _RUN_DIR))


def _claimed_together(composed: DictConfig) -> Path:
    """Returns the folder of this process: the run's for process 0, and one inside it for each other process."""
    team = current()

    first = team.broadcast("the run's folder", lambda: str(folders.claim(_RUN_DIR, directory(composed, _RUN_DIR))))
    folder = Path(first)
    if not team.is_first:
        folder = folders.claim(_RUN_DIR, folder / _OF_PROCESSES / str(team.index))
        with read_write(composed), open_dict(composed):
            composed.hydra.run.dir = str(folder)
    processes.redirect(folder, team)
    return folder


def _launched(cluster: ClusterConfig, on: MeshConfig, command: Sequence[str], lines: Sequence[str]) -> int:
    """Prints lines and starts a run's processes on this machine, again after a loss; returns their exit code."""
    count = int(cluster.processes or 1)
    gpus: list[str] = []
    if on.device == "gpu":
        gpus = accelerators.take(size(on.axes))
    # The run is a sweep's job, so each of its processes is.
    sweep = membership.membership()
    environment: dict[str, str] = {}
    if sweep is not None:
        environment = sweep.environment()

    def start(variables: Mapping[str, str]) -> int:
        print(*lines, flush=True)
        return launch.run(command, count, {**environment, **variables}, gpus, on.device)

    # A supervisor around this command starts it again, and counts.
    if not cluster.restarts or restarts.is_supervised():
        return start({})
    return restarts.run(start, cluster.restarts)


def _of_one_run(command: Sequence[str], resumed: str | None) -> list[str]:
    """Returns a typed command line with the folder of the run that was found: that of `resume=latest` may change."""
    arguments = list(command)
    if resumed is not None and resumed != AUTO:
        for index, argument in enumerate(command):
            if key_of(argument) == _RESUME:
                arguments[index] = f"{_RESUME}={quoted(resumed)}"
    return arguments


def _what_processes_must_agree_on(config: RunConfig, composed: DictConfig) -> dict[str, object]:
    """Returns what the processes of a run compare when they meet: else they could wait for each other for ever."""
    agreed: dict[str, object] = {"the command": command_module()}
    paths = import_paths(config.model, config.optimizer, config.dataset, config.task, config.trainer)
    agreed["the version of the program, or of the config's own modules,"] = code_version(paths)
    for name, version in installed(_LIBRARIES).items():
        agreed[f"the version of {name}"] = version
    kind = config.mesh.device
    if kind != "cpu":  # virtual CPU devices are as many as the config says
        agreed["the number of devices"] = accelerators.find(kind).count
    for key in ("resume", "name", "branch", "run"):
        agreed[key] = getattr(config, key)
    for key, value in flatten(resolved(without_hydra(composed), config.mesh, config.tracking.uri)):
        if not key.startswith(_KEYS_PER_PROCESS):
            agreed[key] = value
    return agreed
