"""Checks of what a sweep compares its jobs by; see `runner.checks.run`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runner.config.checks_values import one_of
from runner.config.schema import SweepConfig, TaskConfig
from runner.errors import invalid
from runner.host.late import late
from runner.task import metrics

if TYPE_CHECKING:
    from runner.task import registry as task
else:
    task = late("runner.task.registry")  # with NumPy, which `--help` does without


def settled(config: SweepConfig, of: TaskConfig) -> SweepConfig:
    """Returns the group with the metric that `auto` stands for, and with its direction.

    Args:
      config: the group.
      of: the task of the jobs, checked.

    Raises:
      ConfigError: no run logs that metric, or its best job would be the worst.
    """
    if config.direction is not None:
        one_of("sweep.direction", config.direction, metrics.DIRECTIONS)
    names = metrics.choices(task.metric_directions(of), task.step_metric_names(of))
    metric = metrics.default(task.metric_directions(of)) if config.metric == metrics.AUTO else config.metric
    one_of("sweep.metric", metric, (*names, metrics.AUTO))
    better = names[metric]
    if None not in (better, config.direction) and better != config.direction:
        raise invalid(
            "sweep.direction",
            config.direction,
            problem=f"{better} with sweep.metric={metric}, the worst job would be the best otherwise",
            fix=f"set sweep.direction={better}, or leave it out",
        )
    return replace(config, metric=metric, direction=config.direction or better or metrics.MAXIMIZE)
