"""Chooses the devices of a run's mesh, and finds what libraries lack for them, before any library is imported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

from omegaconf import DictConfig, OmegaConf

from runner.cluster import accelerators, place
from runner.cluster import checks as checks_cluster
from runner.cluster.accelerators import GPU, TPU, Accelerators, counted
from runner.config.schema import ClusterConfig, HardwareConfig, MeshConfig, RunConfig
from runner.engine.registry import ENGINES
from runner.errors import ConfigError, invalid
from runner.host.session import command_module
from runner.layout import mesh

AUTO = "auto"
CPU = "cpu"
_PLAN_COMMAND = "runner.plan"  # computes nothing on the mesh
# JAX computes on GPUs if the plugin of one of these CUDA versions is installed.
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_TPU_LIBRARY = "libtpu"
INSTALLS = {("jax", "gpu"): "pip install -e '.[cuda]'", ("jax", "tpu"): "pip install -e '.[tpu]'"}
# The compilers of accelerators that need not be here: kind -> Python module, and extra that installs it.
COMPILERS = {"gpu": ("jax_plugins.xla_cuda12", "cuda"), "tpu": ("libtpu", "tpu")}


@dataclass(frozen=True)
class Choice:
    """A kind of devices.

    Attributes:
      count: number of devices in all processes.
      model: of accelerators, if it is known.
      unused_reason: why the accelerators of this machine are not used, and the fix; empty if there are none or they
        are used.
    """

    kind: str
    count: int
    model: str = ""
    unused_reason: str = ""


@dataclass(frozen=True)
class Lack:
    """What is missing, in words, and the command that installs it, or another setting."""

    what: str
    fix: str


def lack(engine: str, kind: str) -> Lack | None:
    """Returns what an engine lacks to use accelerators of a kind, `gpu` or `tpu`; None if nothing is known."""
    if not ENGINES[engine].full:
        return Lack(f"engine={engine} has no support", "set engine=jax")
    modules: tuple[str, ...] = (_TPU_LIBRARY,)
    name = _TPU_LIBRARY
    if kind == GPU:
        modules = _CUDA_PLUGINS
        name = "CUDA"
    if any(map(importlib.util.find_spec, modules)):
        return None
    return Lack(f"the installed JAX has no {name}", INSTALLS["jax", kind])


def has_compiler(kind: str) -> bool:
    """Returns whether the compiler of a kind of device is installed."""
    if kind not in COMPILERS:
        return False
    module, _ = COMPILERS[kind]
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def choose(config: MeshConfig, engine: str, cluster: ClusterConfig, hardware: HardwareConfig) -> Choice:
    """Returns the devices of a mesh as it was typed; a ConfigError if they are not available.

    `auto` chooses this machine's accelerators if the mesh fits them and the installed libraries can use them, else
    virtual CPU devices. Nothing is imported or started for the choice.
    """
    if not hardware.is_here and hardware.kind is not None:
        return Choice(hardware.kind, _count_set_by(config), hardware.name)
    asked = config.device
    launcher = place.from_launcher()
    if asked == AUTO and launcher is not None and launcher.device:
        # The launcher has seen all devices of the machine and assigns them to the processes.
        asked = launcher.device
    if asked in (GPU, TPU):
        return _named(engine, cluster, config, asked)
    unused_reason = ""
    if asked == AUTO:
        for available in (accelerators.find(TPU), accelerators.find(GPU)):
            if not available.count:
                continue
            reason = _why_not(engine, cluster, config, available)
            if not reason:
                return Choice(available.kind, _count_in_all(cluster, available), available.model)
            # Of several kinds the first one's reason is shown: TPUs come before GPUs.
            unused_reason = unused_reason or reason
    cpus = config.cpu_devices * checks_cluster.machines(cluster, CPU)
    return Choice(CPU, cpus, unused_reason=unused_reason)


def _count_set_by(config: MeshConfig) -> int:
    """Returns the number of devices that a mesh sets; 0 for a mesh with a size of -1, which takes all there are."""
    if -1 in config.axes.values():
        return 0
    return mesh.size(config.axes)


def _count_in_all(config: ClusterConfig, available: Accelerators) -> int:
    return available.count * checks_cluster.machines(config, available.kind)


def _why_not(engine: str, cluster: ClusterConfig, config: MeshConfig, available: Accelerators) -> str:
    """Returns why `auto` does not choose this machine's accelerators; empty if it does."""
    words = available.words()
    processes = place.count(cluster)
    if available.kind == TPU and processes > 1:
        return f"the {words} here can't be shared by several processes; use cluster=single"
    count = _count_in_all(cluster, available)
    try:
        mesh.resolve_axes(replace(config, device=available.kind), count)
    except ConfigError:
        all_words = counted(count, available.kind, available.model) + _in_processes(processes)
        fitting = "mesh=single uses it" if count == 1 else "mesh=data uses all of them"
        return f"the mesh does not fit the {all_words} here; {fitting}"
    missing = lack(engine, available.kind)
    if missing is not None:
        return f"{missing.what} for the {words} here; {missing.fix}"
    return ""


def _in_processes(processes: int) -> str:
    if processes == 1:
        return ""
    return f" in {processes} processes"


def _named(engine: str, cluster: ClusterConfig, config: MeshConfig, kind: str) -> Choice:
    """Returns the accelerators that were asked for by name. With `runner.plan` they need not exist."""
    available = accelerators.find(kind)
    count = _count_in_all(cluster, available)
    if command_module() == _PLAN_COMMAND:
        return Choice(kind, max(count, _count_set_by(config)), available.model)
    key = "mesh.device"
    if not available.count:
        fix = f"set {key}=cpu, or plan the run with python -m {_PLAN_COMMAND}, which needs no {kind.upper()}"
        raise invalid(key, kind, problem=accelerators.absence(kind), fix=fix)
    missing = lack(engine, kind)
    if missing is not None:
        problem = f"{missing.what} for the {available.words()} here"
        raise invalid(key, kind, problem=problem, fix=f"{missing.fix}, or set {key}=cpu")
    return Choice(kind, count, available.model)


def device_lines(config: RunConfig, composed: DictConfig) -> list[str]:
    """Returns the lines that a command prints about its mesh: one, or none if the launcher has printed it.

    Call it before an engine is loaded, because loading hides GPUs.
    """
    if place.from_launcher() is not None:
        return []
    kind = config.mesh.device
    asked = str(OmegaConf.select(composed, "mesh.device", default=AUTO))
    choice = choose(replace(config.mesh, device=asked), config.engine.name, config.cluster, config.hardware)
    is_chosen = choice.kind == kind
    model = choice.model if is_chosen else ""
    devices = counted(mesh.size(config.mesh.axes), kind, model) + _in_processes(place.count(config.cluster))
    text = f"mesh {mesh.describe(config.mesh.axes)} on {devices}"
    note = planning_note(config.mesh, config.hardware, config.cluster)
    if note and command_module() == _PLAN_COMMAND:
        text += f", {note}"
    # The reason is that of the choice: it says nothing of another kind of device.
    if is_chosen and choice.unused_reason:
        text += f": {choice.unused_reason}"
    return [text]


def planning_note(on: MeshConfig, hardware: HardwareConfig, cluster: ClusterConfig) -> str:
    """Returns how a mesh of accelerators is planned, and whether they are missing here; empty for CPUs."""
    kind = on.device
    if not hardware.is_here:
        return f"hardware={hardware.name}, which need not be here"
    if kind == CPU:
        return ""
    available = accelerators.find(kind)
    text = "planned on virtual CPU devices"
    if _count_in_all(cluster, available) >= mesh.size(on.axes):
        return text
    verb = "is" if available.count in (0, 1) else "are"
    return f"{text}, as {available.words()} {verb} here"
