"""The depth of a plan: what its figures come from."""

from __future__ import annotations

from dataclasses import replace

from runner.config.schema import HardwareConfig, RunConfig
from runner.engine import registry
from runner.engine.accelerated import has_compiler
from runner.plan.base import ARITHMETIC

AUTO = "auto"
CPU = "cpu"
TARGET = "target"


def settled(config: RunConfig) -> RunConfig:
    """Returns the config with `plan.compiler` settled, and hardware that the depth needs.

    `auto` compiles for this machine's devices with its CPU's compiler. For other hardware it takes that hardware's own
    compiler if it is installed, else arithmetic.
    """
    depth = config.plan.compiler
    hardware = config.hardware
    if depth == AUTO:
        depth = _automatic(hardware, config.engine.name)
    if depth == CPU:
        # The engine compiles for virtual CPU devices of this machine. Rates and links stay those of the hardware,
        # which `make_plan` takes beside the config.
        hardware = HardwareConfig()
    return replace(config, hardware=hardware, plan=replace(config.plan, compiler=depth))


def _automatic(hardware: HardwareConfig, engine: str) -> str:
    if hardware.is_here or not registry.plans_elsewhere(engine):
        return CPU
    if hardware.target is not None and has_compiler(hardware.kind or ""):
        return TARGET
    return ARITHMETIC
