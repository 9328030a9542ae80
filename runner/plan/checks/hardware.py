"""Checks of the hardware that a plan is made for, and of the depth of the plan."""

from __future__ import annotations

from runner.config.schema import AUTO, HardwareConfig, TaskConfig
from runner.engine import registry
from runner.errors import invalid
from runner.task import registry as tasks

# Keys that a plan for other hardware reads.
_REQUIRED = ("kind", "memory_gib", "peak_tflops", "memory_gb_s", "link_gb_s")
_ADVISE_MODULE = "runner.advise"


def check(hardware: HardwareConfig, compiler: str, engine: str, task: TaskConfig) -> None:
    """Checks the group `hardware` and `plan.compiler` of a config whose mesh is settled.

    Raises:
      ConfigError: the hardware lacks a figure or can't be used by this command, or the engine does not support the
        depth.
    """
    if hardware.is_here:
        if compiler != AUTO:
            fix = "set hardware=h100, or another"
            raise invalid("plan.compiler", compiler, problem="needs the hardware to plan for", fix=fix)
        return
    if not registry.ENGINES[engine].full:
        problem = f"engine={engine} plans for this machine's devices only"
        raise invalid("hardware", hardware.name, problem=problem, fix="remove hardware, or plan with engine=jax")
    if tasks.entry(task).own_step:
        problem = f"the step of task={task.name} is planned for this machine's devices only"
        raise invalid("hardware", hardware.name, problem=problem, fix="remove hardware")
    if compiler == "target" and hardware.target is None:
        problem = f"no compiler is known for hardware={hardware.name}, whose hardware.target is null"
        raise invalid("plan.compiler", compiler, problem=problem, fix="set plan.compiler=arithmetic")


def check_command(hardware: HardwareConfig, compiler: str, devices: int | None, module: str) -> None:
    """Checks that a command, such as `runner.plan`, may be given hardware, and that advice has what it needs.

    Raises:
      ConfigError: the hardware is elsewhere, and the command plans nothing; or there is no advice on this config.
    """
    if module == _ADVISE_MODULE and devices is None:
        fix = "add devices=64, or another number"
        raise invalid("devices", None, problem="advice needs the number of devices", fix=fix)
    if module == _ADVISE_MODULE and hardware.is_here:
        raise invalid("hardware", "here", problem="advice is for accelerators", fix="set hardware=h100, or another")
    if module == _ADVISE_MODULE and compiler == "target":
        fix = "remove it, and compile the step of the best candidate with python -m runner.plan"
        raise invalid("plan.compiler", "target", problem="advice compares by arithmetic", fix=fix)
    if not hardware.is_here and module not in ("runner.plan", _ADVISE_MODULE):
        problem = "only python -m runner.plan plans for other hardware; a run uses this machine's"
        fix = "remove hardware, and choose devices with mesh.device"
        raise invalid("hardware", hardware.name, problem=problem, fix=fix)


def check_figures(hardware: HardwareConfig, device: str) -> None:
    """Checks that hardware elsewhere has every figure that a plan reads, and this machine none; for any mesh.

    Raises:
      ConfigError: a figure is missing or has no effect, or `device` of the mesh is of another kind.
    """
    if hardware.is_here:
        # A user's YAML that has no name is `here` too.
        if hardware != HardwareConfig():
            problem = "is this machine, of which a plan reads no figures"
            raise invalid("hardware.name", hardware.name, problem=problem, fix="set hardware.name=mine")
        return
    for key in _REQUIRED:
        value = getattr(hardware, key)
        if not value:
            fix = "set it in the YAML of the hardware, as conf/hardware/h100.yaml does"
            raise invalid(f"hardware.{key}", value, problem=f"hardware={hardware.name} needs it", fix=fix)
    if device not in ("auto", hardware.kind):
        problem = f"hardware={hardware.name} is of kind {hardware.kind}"
        raise invalid("mesh.device", device, problem=problem, fix=f"remove it, or set mesh.device={hardware.kind}")
