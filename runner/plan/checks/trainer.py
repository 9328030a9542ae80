"""Checks between keys of `trainer`, and of the metrics that select a run; see `runner.plan.checks.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.config.schema import OptimizerConfig, SweepConfig, TaskConfig
from runner.config.schema_trainer import TrainerConfig
from runner.config.values import check_name
from runner.errors import invalid
from runner.task import registry as task
from runner.task.metrics import AUTO, MAXIMIZE, choices, default, selecting

# Keys that each set the length of an epoch.
_EPOCH_LENGTHS = ("steps_per_epoch", "limit_train_batches", "overfit_batches")

# Keys that each set the length of the run.
_RUN_LENGTHS = ("epochs", "steps", "tokens")


def default_epochs(steps: object, tokens: object) -> int | None:
    """Returns the default of `trainer.epochs`, for conf/trainer/default.yaml."""
    if steps is None and tokens is None:
        return TrainerConfig.epochs
    return None


def auto_if_any(*values: object) -> str | None:
    """Returns the default of a metric that switches a feature on: `auto` if another key of the feature is set.

    Whoever sets `trainer.early_stopping.patience` alone wants early stopping.
    """
    if values.count(None) == len(values):
        return None
    return AUTO


def check(config: TrainerConfig, task: str, *, counts_tokens: bool) -> None:
    """Checks the keys that set the length of an epoch and of the run, and the steps between evaluations.

    Raises:
      ConfigError: the run has no length, one of them is set twice, or the task can't count the run's.
    """
    _has_one(config, _EPOCH_LENGTHS, "an epoch has one length", "remove trainer.{} or trainer.{}")
    if not _has_one(config, _RUN_LENGTHS, "a run has one length", "set trainer.{}=null or trainer.{}=null"):
        fix = f"set trainer.epochs={TrainerConfig.epochs}, trainer.steps or trainer.tokens"
        raise invalid("trainer.epochs", None, problem="a run needs a length", fix=fix)
    if config.tokens is not None and not counts_tokens:
        problem = f"task={task} has no tokens to count"
        raise invalid("trainer.tokens", config.tokens, problem=problem, fix="set trainer.steps or trainer.epochs")
    interval = config.evaluate_every_steps
    if interval is not None and config.evaluate_every != TrainerConfig.evaluate_every:
        problem = f"evaluations have one interval, but trainer.evaluate_every={config.evaluate_every} is set too"
        fix = "set trainer.evaluate_every=1 or trainer.evaluate_every_steps=null"
        raise invalid("trainer.evaluate_every_steps", interval, problem=problem, fix=fix)


def _has_one(config: TrainerConfig, keys: Sequence[str], what: str, fix: str) -> bool:
    """Returns whether one of some keys is set; ConfigError if two are, with a `fix` that has a place for each."""
    used = [key for key in keys if getattr(config, key) is not None]
    if len(used) > 1:
        first, second = used[:2]
        problem = f"{what}, but trainer.{first}={getattr(config, first)} is set too"
        raise invalid(f"trainer.{second}", getattr(config, second), problem=problem, fix=fix.format(first, second))
    return bool(used)


def with_metrics(config: TrainerConfig, directions: Mapping[str, str], steps: Sequence[str] = ()) -> TrainerConfig:
    """Returns the group with `auto` replaced by the metric that it selects.

    `directions` are the task's evaluation metrics, `loss` first, to `maximize` or `minimize`; `steps` the metrics of a
    training step except the loss.
    By default the best checkpoint uses the metric of early stopping, and both use the task's first choice.

    Raises:
      ConfigError: a key names a metric that the task does not have, or that has no better direction.
    """
    early = config.early_stopping
    stopping_metric = early.metric
    if stopping_metric == AUTO:
        stopping_metric = default(directions)
    best_metric = config.checkpoint.best
    if best_metric == AUTO:
        best_metric = stopping_metric or default(directions)
    metrics = {"early_stopping.metric": stopping_metric, "checkpoint.best": best_metric}
    for key, metric in metrics.items():
        if metric is not None:
            check_name(f"trainer.{key}", metric, (*selecting(directions, steps), AUTO))
    return replace(
        config,
        early_stopping=replace(early, metric=stopping_metric),
        checkpoint=replace(config.checkpoint, best=best_metric),
    )


def with_plateau_metric(
    config: OptimizerConfig, trainer: TrainerConfig, directions: Mapping[str, str], steps: Sequence[str] = ()
) -> OptimizerConfig:
    """Returns the group with `auto` replaced by the metric that reduces the learning rate; see `with_metrics`.

    That is the metric of early stopping, if `trainer`, as `with_metrics` returns it, has one.

    Raises:
      ConfigError: the task has no such metric.
    """
    plateau = config.schedule.plateau
    metric = plateau.metric
    if metric is None:
        return config
    if metric == AUTO:
        metric = trainer.early_stopping.metric or default(directions)
    check_name("optimizer.schedule.plateau.metric", metric, (*selecting(directions, steps), AUTO))
    return replace(config, schedule=replace(config.schedule, plateau=replace(plateau, metric=metric)))


def settled_sweep(config: SweepConfig, of: TaskConfig) -> SweepConfig:
    """Returns the group with a metric and a direction of the jobs' task, not `auto` or null.

    Raises:
      ConfigError: no run logs that metric, or the direction would select the worst job.
    """
    directions = choices(task.metric_directions(of), task.step_metric_names(of))
    metric = config.metric
    if metric == AUTO:
        metric = default(task.metric_directions(of))
    check_name("sweep.metric", metric, (*directions, AUTO))
    # A metric of training steps may have no direction of its own.
    better = directions[metric]
    if better is not None and config.direction is not None and better != config.direction:
        raise invalid(
            "sweep.direction",
            config.direction,
            problem=f"must be {better} with sweep.metric={metric}, or the worst job would be selected",
            fix=f"set sweep.direction={better}, or remove it",
        )
    return replace(config, metric=metric, direction=config.direction or better or MAXIMIZE)
