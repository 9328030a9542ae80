"""Checks of `trainer`; see `runner.checks.run`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from runner.config.checks_values import folder, one_of, positive, within
from runner.config.schema_trainer import TrainerConfig
from runner.errors import invalid
from runner.task.metrics import AUTO, default, evaluated

_COUNTS = ("epochs", "evaluate_every", "log_every_steps", "accumulate_steps", "steps_per_call", "limit_eval_batches")
_LENGTHS = ("steps_per_epoch", "limit_train_batches", "overfit_batches")


def check(config: TrainerConfig, directions: Mapping[str, str]) -> None:
    """Checks the group.

    Args:
      config: the group.
      directions: the task's metrics of an evaluation, `loss` first.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    for key in (*_COUNTS, *_LENGTHS):
        positive(f"trainer.{key}", getattr(config, key))
    if not 0 <= config.seed < 2**31:
        raise invalid("trainer.seed", config.seed, problem="0 to 2147483647", fix="set trainer.seed=1337")
    one_of("trainer.progress", config.progress, ("auto", "bar", "lines", "none"))
    _check_lengths(config)
    _check_checkpoint(config)
    positive("trainer.early_stopping.patience", config.early_stopping.patience)
    within("trainer.early_stopping.min_delta", config.early_stopping.min_delta, 0.0, math.inf)
    with_metrics(config, directions)
    one_of("trainer.eval_mean", config.eval_mean, ("examples", "batches"))
    _check_on_nan(config)
    positive("trainer.profile.steps", config.profile.steps)
    if config.profile.start is not None and config.profile.start < 0:
        raise invalid(
            "trainer.profile.start", config.profile.start, problem="0 or more", fix="set trainer.profile.start=10"
        )


def _check_lengths(config: TrainerConfig) -> None:
    given = [key for key in _LENGTHS if getattr(config, key) is not None]
    if len(given) > 1:
        raise invalid(
            f"trainer.{given[1]}",
            getattr(config, given[1]),
            problem=f"one length of an epoch, and trainer.{given[0]}={getattr(config, given[0])} is set",
            fix="leave out one of the two",
        )


def _check_checkpoint(config: TrainerConfig) -> None:
    checkpoint = config.checkpoint
    key = "trainer.checkpoint"
    positive(f"{key}.keep", checkpoint.keep)
    folder(f"{key}.folder", checkpoint.folder)
    positive(f"{key}.every_steps", checkpoint.every_steps)
    within(f"{key}.every_minutes", checkpoint.every_minutes, 0.0, math.inf, open_low=True)


def with_metrics(config: TrainerConfig, directions: Mapping[str, str]) -> TrainerConfig:
    """Returns the group with the metrics that `auto` stands for.

    The best checkpoint goes by what early stopping goes by, and both by the task's own first choice.

    Args:
      config: checked.
      directions: the task's metrics of an evaluation, `loss` first.

    Raises:
      ConfigError: a key names a metric that the task does not have.
    """
    names = evaluated(directions)
    early = config.early_stopping
    best = config.checkpoint.best
    stops_by = default(directions) if early.metric == AUTO else early.metric
    best = (stops_by or default(directions)) if best == AUTO else best
    for key, metric in (("early_stopping.metric", stops_by), ("checkpoint.best", best)):
        if metric is not None:
            one_of(f"trainer.{key}", metric, (*names, AUTO))
    if config.checkpoint.enabled and stops_by is not None and best != stops_by:
        raise invalid(
            "trainer.early_stopping.metric",
            early.metric,
            problem=f"the metric of the best checkpoint, and trainer.checkpoint.best={best or 'null'}",
            fix=f"set trainer.checkpoint.best={stops_by}",
        )
    checkpoint = replace(config.checkpoint, best=best)
    return replace(config, early_stopping=replace(early, metric=stops_by), checkpoint=checkpoint)


def _check_on_nan(config: TrainerConfig) -> None:
    one_of("trainer.on_nan", config.on_nan, ("stop", "restore", "continue"))
    within("trainer.nan_rate_factor", config.nan_rate_factor, 0.0, 1.0, open_low=True)
    positive("trainer.nan_restores", config.nan_restores)
    if config.on_nan != "restore":
        return
    if not config.checkpoint.enabled:
        raise invalid(
            "trainer.on_nan",
            "restore",
            problem="it goes back to a checkpoint, and trainer.checkpoint.enabled=false",
            fix="set trainer.checkpoint.enabled=true or trainer.on_nan=stop",
        )
    if config.checkpoint.keep < 2:
        raise invalid(
            "trainer.checkpoint.keep",
            config.checkpoint.keep,
            problem="2 or more with trainer.on_nan=restore, as the last checkpoint may hold the weights that overflow",
            fix="set trainer.checkpoint.keep=2",
        )
