"""What a run is warned of: allowed, and hardly what was meant. Each warning is one line with its fix."""

from __future__ import annotations

from runner.config.checks_values import as_float32, changed
from runner.config.schema import LayoutConfig, OptimizerConfig, RunConfig
from runner.host import cores
from runner.layout import mesh
from runner.layout.axes import batch_axis
from runner.optim.schedules import learning_rate
from runner.processes import place

_DEVICES_A_CORE = 8


def of_config(config: RunConfig) -> list[str]:
    """Returns what the config alone tells.

    Args:
      config: checked.
    """
    found = []
    devices = mesh.size(config.mesh.axes)
    available = cores.available()
    if mesh.device_kind(config.mesh) == "cpu" and devices > _DEVICES_A_CORE * available:
        found.append(
            f"{devices} virtual devices on {available} {'core' if available == 1 else 'cores'} show what a mesh "
            "computes, not how fast; choose a smaller mesh, or see with python -m runner.plan what a large one costs"
        )
    if config.cluster.name == "single" and (task := place.scheduled()) is not None:
        found.append(
            f"{task.found} started {task.count} tasks, each of which trains a run of its own; set cluster=auto, and "
            "they are one run"
        )
    trainer = config.trainer
    idle = [
        ("trainer", trainer, ("nan_rate_factor", "nan_restores"), trainer.on_nan == "restore", "on_nan=restore"),
        (
            "trainer.early_stopping",
            trainer.early_stopping,
            ("patience", "min_delta"),
            trainer.early_stopping.metric,
            "early_stopping.metric=auto",
        ),
        ("trainer.profile", trainer.profile, ("steps",), trainer.profile.start is not None, "profile.start=10"),
    ]
    for prefix, group, keys, used, needed in idle:
        if not used:
            for key in changed(group, keys):
                value = getattr(group, key)
                found.append(f"{prefix}.{key}={value} has no effect; set trainer.{needed} too, or leave it out")
    return found


def of_rates(config: OptimizerConfig, total_steps: int) -> list[str]:
    """Returns what a schedule says of steps that the run does not reach, or of those that it trains nothing in.

    Args:
      config: checked.
      total_steps: of the whole run.
    """
    schedule = config.schedule
    key = "optimizer.schedule"
    if schedule.warmup_steps >= total_steps:
        return [
            f"{key}.warmup_steps={schedule.warmup_steps:,} is no shorter than the run of {total_steps:,} steps, which "
            f"never reaches optimizer.learning_rate; set {key}.warmup_steps={total_steps // 10} or train longer"
        ]
    late = [step for step in schedule.boundaries if step >= total_steps]
    if late:
        return [
            f"{key}.boundaries={schedule.boundaries}: the run of {total_steps:,} steps ends before {late[0]:,}, and "
            "does not use the factors from there on; set smaller boundaries or train longer"
        ]
    middle = total_steps // 2
    if middle and not any(as_float32(learning_rate(config, step, total_steps)) for step in (middle, total_steps - 1)):
        return [
            f"{key}.name={schedule.name} gives a learning rate of 0 in the second half of the run, which trains "
            f"nothing; set a larger {key}.decay_steps, or a rate above 0 for it"
        ]
    return []


def of_crossing(config: LayoutConfig, axes: dict[str, int], processes: int) -> list[str]:
    """Returns what the order of a mesh's axes costs where several processes share it out.

    Along the axis that splits examples gradients are added up once a step; along others layers wait for each other.

    Args:
      config: checked.
      axes: mesh axis to size.
      processes: how many there are.
    """
    first = batch_axis(config, axes)
    if first is None:
        return []
    ordered = {first: axes[first], **axes}
    spared = [axis for axis in mesh.crossing(axes, processes) if axis not in mesh.crossing(ordered, processes)]
    if not spared:
        return []
    shown = ",".join(f"{axis}:{count}" for axis, count in ordered.items())
    return [
        f"mesh axis {', '.join(spared)} crosses the {processes} processes, and in the order {{{shown}}} would not: "
        f"the outermost axes cross first, so put {first} before the others"
    ]
