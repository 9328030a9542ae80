"""Warnings for valid configs that are probably mistakes, one line each with a suggested fix."""

from __future__ import annotations

from runner.cluster import place
from runner.config.schema import ClusterConfig, MeshConfig, OptimizerConfig
from runner.config.values import as_float32
from runner.engine.optim.schedules import learning_rate
from runner.errors import shown
from runner.host import cores
from runner.layout import mesh

# A choice: with more virtual devices per core, a step waits for threads most of its time.
_DEVICES_PER_CORE = 8


def of_config(config: MeshConfig, cluster: ClusterConfig) -> list[str]:
    """Returns the warnings that need a checked config only."""
    warnings = []
    devices = mesh.size(config.axes)
    available = cores.available()
    if mesh.device_kind(config) == "cpu" and devices > _DEVICES_PER_CORE * available:
        noun = "core" if available == 1 else "cores"
        warnings.append(
            f"{devices} virtual devices on {available} {noun} show what a mesh "
            "computes, not how fast; use a smaller mesh, or estimate a large one with python -m runner.plan"
        )
    scheduled = place.scheduled()
    # A launcher such as torchrun or srun starts the command once per task.
    if cluster.name == "single" and scheduled is not None:
        warnings.append(
            f"{scheduled.source} started {scheduled.count} tasks, and each will train a separate run; set "
            "cluster=auto to train one run"
        )
    return warnings


def of_rates(config: OptimizerConfig, total_steps: int) -> list[str]:
    """Returns a warning for a schedule that the run does not reach, or that ends training early."""
    schedule = config.schedule
    key = "optimizer.schedule"
    if schedule.warmup_steps >= total_steps:
        return [
            f"{key}.warmup_steps={schedule.warmup_steps:,} is no shorter than the run of {total_steps:,} steps, which "
            f"never reaches optimizer.learning_rate; set {key}.warmup_steps={total_steps // 10} or train longer"
        ]
    unreached = [step for step in schedule.boundaries if step >= total_steps]
    if unreached:
        return [
            f"{key}.boundaries={shown(schedule.boundaries)}: the run of {total_steps:,} steps ends before step "
            f"{unreached[0]:,}, so later factors have no effect; set smaller boundaries or train longer"
        ]
    # A rate that is 0 at both ends of the second half is taken to be 0 in all of it.
    middle = total_steps // 2
    last_half = (middle, total_steps - 1)
    if middle and not any(as_float32(learning_rate(config, step, total_steps)) for step in last_half):
        return [
            f"{key}.name={schedule.name} has a learning rate of 0 in the second half of the run, which trains "
            f"nothing; set a larger {key}.decay_steps, or a final rate above 0"
        ]
    return []
