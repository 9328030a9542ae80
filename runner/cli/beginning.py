"""The beginning of a run: before Hydra writes anything the config is checked and the run's folder claimed.

Hydra makes a run's folder, and its own files and the log in it, before it calls the program.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path, PurePath

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict, read_write

from runner.checks import task as checks_task
from runner.checks.composed import convert
from runner.config.convert import as_typed, flatten, resolved
from runner.config.hydra_node import directory, say_replaced, without_hydra
from runner.config.schema import RunConfig
from runner.engine import devices, registry
from runner.errors import ConfigError, Refused, invalid
from runner.host import accelerators, folders
from runner.host.commands import command_module
from runner.host.secrets import hide_config
from runner.host.versions import installed
from runner.layout.mesh import size
from runner.processes import begin as processes
from runner.processes import launch, outputs, place
from runner.processes.team import current
from runner.sweep import member
from runner.sweep.identity import code_version
from runner.training.checkpoint.arguments import restarted

LOG = "runner.log"
_HYDRA_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_DIR = "hydra.run.dir"
_SUBDIR = "hydra.output_subdir"
_TRAINS = "runner"
_LOOKS = "runner.data"  # at a dataset, whatever its task would be
_ALONE = ("runner.plan", _LOOKS)  # commands that compute nothing with the mesh
_LIBRARIES = ("runner", *registry.distributions(), "jaxlib", "numpy")
# What every process has its own of, or that only process 0 looks at.
_OWN = ("cluster.index", "cluster.interface", "cluster.coordinator", "cluster.secret_file", "tracking.uri")


@dataclass(frozen=True)
class Begun:
    """A run that may start.

    Attributes:
      config: checked.
      claim: its folder.
      subdir: folder in it that Hydra writes into; null: none.
    """

    config: RunConfig
    claim: folders.Claim
    subdir: str | None

    def withdraw(self) -> None:
        """Takes back what was written before the run was refused after all; what has run stays.

        So does what several processes wrote, into a folder that the next run may take.
        """
        if current().count == 1 and not (self.claim.folder / "config.yaml").exists():
            _close_logs(self.claim.folder)
            hydras = [f"{self.subdir}/{name}" for name in _HYDRA_FILES] if self.subdir else []
            self.claim.withdraw([LOG, *hydras])


_begun: list[Begun] = []


class RunCallback(Callback):
    """Hydra's callback of a run that is no multirun."""

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        """Takes secrets out of the config, checks it and claims the folder.

        Raises:
          Refused: the one or the other is refused; nothing has been written.
          SystemExit: this process has started those that run the command, and they have ended.
        """
        del kwargs
        try:
            hide_config(config)
            if member.membership() is None and place.from_launcher() is None:
                say_replaced(config)
            _begun[:] = [begin(config)]
        except Exception as error:
            raise Refused(error) from error


def begin(composed: DictConfig) -> Begun:
    """Checks a run's config and claims its folder.

    Args:
      composed: what Hydra composed, its own part included.

    Raises:
      ConfigError: the config is refused, or the folder is not ours to write into.
    """
    config = convert(without_hydra(composed))
    if command_module() != _LOOKS:
        checks_task.check(config)
    subdir = composed.hydra.output_subdir
    if subdir is not None and not _is_inside(str(subdir)):
        raise invalid(_SUBDIR, subdir, problem="a folder's name, or null", fix=f"drop it, or set {_SUBDIR}=.hydra")
    claim = None if command_module() in _ALONE else _joined(config, composed)
    claim = claim or folders.claim(_DIR, directory(composed, _DIR))
    if config.cluster.requeue and command_module() == _TRAINS:
        try:
            config = restarted(config, as_typed(composed.hydra.overrides.task))
        except BaseException:
            claim.withdraw([])
            raise
    return Begun(config, claim, None if subdir is None else str(subdir))


def _joined(config: RunConfig, composed: DictConfig) -> folders.Claim | None:
    """Starts the processes of the config, or comes to them.

    Returns:
      The folder of this process: process 0's is the run's, and the others' lie below it; None where it is alone.
    """
    cluster = config.cluster
    if processes.launches(cluster):
        folders.check(_DIR, directory(composed, _DIR))
        print(*devices.line(config, composed), flush=True)
        gpus = accelerators.take(size(config.mesh.axes)) if config.mesh.device == "gpu" else []
        count = int(cluster.processes or 1)
        raise SystemExit(launch.run(count, member.environment(), gpus, config.mesh.device))
    if not processes.is_one_of_several(cluster):
        return None
    content = dict(flatten(resolved(config, without_hydra(composed))))
    agrees = {key: value for key, value in content.items() if not key.startswith(_OWN)}
    versions = {f"the version of {name}": version for name, version in installed(_LIBRARIES).items()}
    kind = config.mesh.device
    here = {"the number of devices": accelerators.find(kind).count} if kind != "cpu" else {}
    asked = {key: getattr(config, key) for key in ("resume", "branch", "run")}
    code = {"the version of the program, or of the config's own modules,": code_version(config)}
    processes.join(cluster, {"the command": command_module(), **code, **versions, **here, **asked, **agrees})
    team = current()
    claims = list[folders.Claim]()

    def claimed() -> str:
        claims.append(folders.claim(_DIR, directory(composed, _DIR)))
        return str(claims[0].folder)

    folder = Path(team.broadcast("the run's folder", claimed))
    if not claims:
        with read_write(composed), open_dict(composed):
            composed.hydra.run.dir = str(outputs.own_folder(folder, team))
        claims.append(folders.claim(_DIR, outputs.own_folder(folder, team)))
    outputs.part(claims[0].folder, team)
    return claims[0]


def begun() -> Begun:
    """Returns what the callback found.

    Raises:
      ConfigError: it was not called.
    """
    if not _begun:
        raise ConfigError("hydra.callbacks: a run needs the callback `run`; leave hydra.callbacks as it is")
    outputs.share_log(current())
    return _begun[0]


def _is_inside(name: str) -> bool:
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _close_logs(folder: Path) -> None:
    """Lets go of a run's log files, which some systems can't delete while they are open."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.FileHandler) and Path(handler.baseFilename).parent == folder:
            root.removeHandler(handler)
            handler.close()
