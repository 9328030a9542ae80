"""Checks of the metric that a sweep compares its jobs by; see `runner.plan.checks.run`."""

from __future__ import annotations

from dataclasses import replace

from runner.config.schema import SweepConfig, TaskConfig
from runner.config.values import check_name
from runner.errors import invalid
from runner.task import metrics
from runner.task import registry as task


def settled(config: SweepConfig, of: TaskConfig) -> SweepConfig:
    """Returns the group with a metric and a direction of the jobs' task, not `auto` or null.

    Raises:
      ConfigError: no run logs that metric, or the direction would select the worst job.
    """
    directions = metrics.choices(task.metric_directions(of), task.step_metric_names(of))
    metric = config.metric
    if metric == metrics.AUTO:
        metric = metrics.default(task.metric_directions(of))
    check_name("sweep.metric", metric, (*directions, metrics.AUTO))
    # A metric of training steps may have no direction of its own.
    better = directions[metric]
    if better is not None and config.direction is not None and better != config.direction:
        raise invalid(
            "sweep.direction",
            config.direction,
            problem=f"must be {better} with sweep.metric={metric}, or the worst job would be selected",
            fix=f"set sweep.direction={better}, or remove it",
        )
    return replace(config, metric=metric, direction=config.direction or better or metrics.MAXIMIZE)
