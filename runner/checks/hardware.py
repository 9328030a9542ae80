"""Checks of the hardware that a plan is made for, and of the depth of the plan."""

from __future__ import annotations

from runner.config.schema import MOST_CPU_DEVICES, RunConfig
from runner.engine import registry
from runner.errors import invalid
from runner.layout import mesh
from runner.task import registry as task

# Keys that a plan for other hardware reads.
_REQUIRED = ("kind", "memory_gib", "peak_tflops", "memory_gb_s", "link_gb_s")
_PLAN_MODULE = "runner.plan"
# Depths that read shapes or another compiler; engines that compile by themselves have `cpu` only.
_DEPTHS_OF_XLA = ("arithmetic", "target")


def check(config: RunConfig) -> None:
    """Checks the groups `hardware` and `plan` of a config whose mesh is settled.

    Raises:
      ConfigError: the hardware lacks a figure or can't be used by this command, or the engine does not support the
        depth.
    """
    hardware = config.hardware
    plans_elsewhere = registry.plans_elsewhere(config.engine.name)
    if config.plan.compiler in _DEPTHS_OF_XLA and not plans_elsewhere:
        raise invalid(
            "plan.compiler",
            config.plan.compiler,
            problem=f"engine={config.engine.name} supports cpu only",
            fix="set engine=jax, or plan.compiler=cpu",
        )
    if hardware.is_here:
        if config.plan.compiler == "arithmetic":
            raise invalid(
                "plan.compiler",
                "arithmetic",
                problem="needs the figures of the hardware to plan for",
                fix="set hardware=h100, or another",
            )
        if config.plan.compiler == "target":
            raise invalid(
                "plan.compiler",
                "target",
                problem="needs the hardware to plan for",
                fix="set hardware=h100, or another",
            )
        return
    if config.plan.compiler == "target" and hardware.target is None:
        raise invalid(
            "plan.compiler",
            "target",
            problem=f"no compiler is known for hardware={hardware.name}, whose hardware.target is null",
            fix="set plan.compiler=arithmetic or plan.compiler=cpu",
        )
    if task.entry(config.task).own_step:
        raise invalid(
            "hardware",
            hardware.name,
            problem=f"the step of task={config.task.name} is planned for this machine's devices only",
            fix="leave hardware out",
        )
    count = mesh.size(config.mesh.axes)
    if count > MOST_CPU_DEVICES and not plans_elsewhere:
        raise invalid(
            "hardware",
            hardware.name,
            problem=f"engine={config.engine.name} plans at most {MOST_CPU_DEVICES} devices, not {count:,}",
            fix="set engine=jax",
        )


def check_command(config: RunConfig, module: str) -> None:
    """Checks that a command may be given hardware.

    Args:
      config: checked.
      module: of the command, such as `runner.plan`.

    Raises:
      ConfigError: the hardware is elsewhere, and the command plans nothing.
    """
    hardware = config.hardware
    if hardware.is_here or module == _PLAN_MODULE:
        return
    raise invalid(
        "hardware",
        hardware.name,
        problem="only python -m runner.plan plans for other hardware; a run uses this machine's",
        fix="leave it out, and choose devices with mesh.device",
    )


def check_figures(config: RunConfig) -> None:
    """Checks that hardware elsewhere has every figure that a plan reads; its mesh need not be settled.

    Raises:
      ConfigError: a figure is missing, or `mesh.device` is of another kind.
    """
    hardware = config.hardware
    if hardware.is_here:
        return
    for key in _REQUIRED:
        value = getattr(hardware, key)
        if not value:
            raise invalid(
                f"hardware.{key}",
                value,
                problem=f"hardware={hardware.name} needs it",
                fix="set it in the YAML of the hardware, as conf/hardware/h100.yaml does",
            )
    if config.mesh.device not in ("auto", hardware.kind):
        raise invalid(
            "mesh.device",
            config.mesh.device,
            problem=f"hardware={hardware.name} is of kind {hardware.kind}",
            fix=f"leave it out, or set mesh.device={hardware.kind}",
        )
