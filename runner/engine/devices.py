"""Which devices a run's mesh is made of, settled once a run before any library is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from omegaconf import DictConfig, OmegaConf

from runner.config.schema import MeshConfig, RunConfig
from runner.engine.accelerated import Lack, lack
from runner.errors import ConfigError, invalid
from runner.host import accelerators
from runner.host.accelerators import GPU, TPU, Accelerators, counted
from runner.host.commands import command_module
from runner.layout import mesh
from runner.processes import checks as checks_cluster
from runner.processes import place

AUTO = "auto"
CPU = "cpu"
_PLANS = "runner.plan"  # which computes nothing with the mesh


@dataclass(frozen=True)
class Choice:
    """A kind of devices.

    Attributes:
      kind: `cpu`, `gpu` or `tpu`.
      count: how many there are, in all processes.
      model: of accelerators, where it is one that is known.
      why: why it is not the accelerators that are here, and the fix; empty where none are, or where they are it.
    """

    kind: str
    count: int
    model: str = ""
    why: str = ""


def settled(config: RunConfig) -> MeshConfig:
    """Returns the mesh with its kind of device, `auto` no more, and with the sizes of its axes.

    Args:
      config: engine and cluster are checked.

    Raises:
      ConfigError: the mesh can't be, or its devices are not there.
    """
    mesh.check(config.mesh)
    chosen = choose(config, config.mesh.device)
    found = replace(config.mesh, device=chosen.kind)
    return replace(found, axes=mesh.resolve_axes(found, chosen.count))


def choose(config: RunConfig, asked: str) -> Choice:
    """Returns the devices that a mesh is made of.

    `auto` takes accelerators that are here where the mesh fits them and the installed libraries can use them, else
    virtual devices of the CPU. Nothing is imported or started for it.

    Args:
      config: engine and cluster are checked.
      asked: `mesh.device` as it was typed.

    Raises:
      ConfigError: accelerators that were asked for by name are not there, or the libraries can't use them.
    """
    launcher = place.from_launcher()
    if asked == AUTO and launcher is not None and launcher.device:
        asked = launcher.device  # it has seen all of the machine's, and deals them out
    if asked in (GPU, TPU):
        return _named(config, asked)
    reasons = [_why_not(config, found) for found in _here()] if asked == AUTO else []
    for found, reason in zip(_here() if reasons else [], reasons, strict=True):
        if not reason:
            return Choice(found.kind, _times(config, found), found.model)
    cpus = config.mesh.cpu_devices * checks_cluster.machines(config.cluster, CPU)
    return Choice(CPU, cpus, why=reasons[0] if reasons else "")


def _here() -> list[Accelerators]:
    return [found for found in map(accelerators.find, (TPU, GPU)) if found.count]


def _times(config: RunConfig, found: Accelerators) -> int:
    return found.count * checks_cluster.machines(config.cluster, found.kind)


def _lack(config: RunConfig, kind: str) -> Lack | None:
    """Returns what one of the engines lacks; a verification may have two."""
    engines = [config.engine.name, *([config.against.engine] if config.against.engine else [])]
    return next((found for engine in engines if (found := lack(engine, kind)) is not None), None)


def _why_not(config: RunConfig, found: Accelerators) -> str:
    """Returns why `auto` does not take accelerators that are here; empty where it does."""
    words = found.words()
    several = place.count(config.cluster)
    if found.kind == TPU and several > 1:
        return f"the {words} here are not shared out to processes; use cluster=single"
    there = _times(config, found)
    try:
        mesh.resolve_axes(replace(config.mesh, device=found.kind), there)
    except ConfigError:
        many = counted(there, found.kind, found.model) + (f" in {several} processes" if several > 1 else "")
        return f"it does not fit the {many} here; {_smaller(there)}"
    if (lacking := _lack(config, found.kind)) is not None:
        return f"{lacking.what} for the {words} here; {lacking.fix}"
    return ""


def _smaller(count: int) -> str:
    """Returns a mesh that uses all of so many devices."""
    return "mesh=single does" if count == 1 else "mesh=data uses all of them"


def _named(config: RunConfig, kind: str) -> Choice:
    """Returns the accelerators that were asked for by name; a plan needs none of them."""
    found = accelerators.find(kind)
    there = _times(config, found)
    if is_elsewhere():
        sizes = config.mesh.axes.values()
        return Choice(kind, max(there, 0 if -1 in sizes else math.prod(sizes)), found.model)
    key = "mesh.device"
    if not found.count:
        fix = f"set {key}=cpu, or plan it: python -m {_PLANS} needs no {kind.upper()}"
        raise invalid(key, kind, problem=accelerators.absence(kind), fix=fix)
    if (lacking := _lack(config, kind)) is not None:
        why = f"{lacking.what} for the {found.words()} here"
        raise invalid(key, kind, problem=why, fix=f"{lacking.fix}, or set {key}=cpu")
    return Choice(kind, there, found.model)


def is_elsewhere() -> bool:
    """Tells whether the devices of a config that is checked need not be here: it is planned, or another job's."""
    return command_module() == _PLANS or place.is_presumed()


def described(config: RunConfig, asked: str) -> str:
    """Returns the mesh and its devices in the line that a run begins with.

    Args:
      config: checked.
      asked: `mesh.device` as it was typed.
    """
    kind = config.mesh.device
    several = place.count(config.cluster)
    chosen = choose(config, asked)
    model, why = (chosen.model, chosen.why) if chosen.kind == kind else ("", "")
    of = counted(mesh.size(config.mesh.axes), kind, model) + (f" in {several} processes" if several > 1 else "")
    text = f"mesh {mesh.describe(config.mesh.axes)} on {of}"
    if kind != CPU and command_module() == _PLANS:
        text += f", {planned(config)}"
    return f"{text}: {why}" if why else text


def line(config: RunConfig, composed: DictConfig) -> list[str]:
    """Returns the line that a command begins with; none where our launcher, which started this process, has said it.

    It is asked for before an engine loads, which hides GPUs from its process.

    Args:
      config: checked.
      composed: the same as Hydra composed it.
    """
    if place.from_launcher() is not None:
        return []
    return [described(config, str(OmegaConf.select(composed, "mesh.device", default=AUTO)))]


def planned(config: RunConfig) -> str:
    """Says how a mesh of accelerators is planned, and which of them are not here; empty of one of the CPU's devices.

    Args:
      config: checked.
    """
    kind = config.mesh.device
    if kind == CPU:
        return ""
    found = accelerators.find(kind)
    few = _times(config, found) < mesh.size(config.mesh.axes)
    verb = "is" if found.count in (0, 1) else "are"
    return "planned on virtual CPU devices" + (f", as {found.words()} {verb} here" if few else "")
