"""Checks of `optimizer`, see `runner.checks.run`, and of its rates over a run, once the run's length is known."""

from __future__ import annotations

import math

from runner.config.checks_values import as_float32, changed, one_of, positive, within
from runner.config.schema import ClipConfig, OptimizerConfig, ScheduleConfig
from runner.errors import ConfigError, invalid
from runner.optim.rules import RULE_KEYS
from runner.optim.schedules import SCHEDULE_KEYS, learning_rate

_KEY = "optimizer.schedule"


def check(config: OptimizerConfig) -> None:
    """Checks the group.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    one_of("optimizer.name", config.name, tuple(RULE_KEYS))
    within("optimizer.learning_rate", config.learning_rate, 0.0, math.inf, open_low=True)
    _check_rule_keys(config)
    for key in ("beta_1", "beta_2", "momentum", "rho"):
        within(f"optimizer.{key}", getattr(config, key), 0.0, 1.0)
    within("optimizer.weight_decay", config.weight_decay, 0.0, math.inf)
    if config.weight_decay and not config.weight_decay * config.learning_rate < 1:
        raise invalid(
            "optimizer.weight_decay",
            config.weight_decay,
            problem=f"below {1 / config.learning_rate:g}, as each step takes it times optimizer.learning_rate off",
            fix="set optimizer.weight_decay=0.004",
        )
    within("optimizer.epsilon", config.epsilon, 0.0, math.inf, open_low=True)
    for key in ("frozen_step", "reread_slots"):
        if getattr(config, key) and config.name != "adam":
            raise invalid(
                f"optimizer.{key}", True, problem="a bug of an Adam, for optimizer=adam", fix=f"leave {key} out"
            )
    if config.nesterov and not config.momentum:
        raise invalid(
            "optimizer.nesterov",
            True,
            problem="nesterov looks ahead along the momentum, which is 0",
            fix="set optimizer.momentum=0.9 or optimizer.nesterov=false",
        )
    within("optimizer.ema.decay", config.ema.decay, 0.0, 1.0)
    _check_clip(config.clip)
    _check_schedule(config.schedule)


def _check_rule_keys(config: OptimizerConfig) -> None:
    used = RULE_KEYS[config.name]
    for key in sorted(set().union(*RULE_KEYS.values())):
        value = getattr(config, key)
        if value is not None and key not in used:
            raise invalid(
                f"optimizer.{key}",
                value,
                problem=f"optimizer.name={config.name} has {', '.join(used)}",
                fix=f"leave {key} out or choose an optimizer that has it",
            )
        if value is None and key in used:
            raise invalid(
                f"optimizer.{key}",
                None,
                problem=f"optimizer.name={config.name} needs a value",
                fix=f"set optimizer.{key}",
            )


def _check_clip(config: ClipConfig) -> None:
    given = {key: value for key in ("norm", "global_norm", "value") if (value := getattr(config, key)) is not None}
    if len(given) > 1:
        raise invalid(
            f"optimizer.clip.{list(given)[1]}",
            list(given.values())[1],
            problem=f"only one kind of clipping, and clip.{next(iter(given))} is set",
            fix=f"set optimizer.clip.{next(iter(given))}=null or leave this one out",
        )
    for key, value in given.items():
        within(f"optimizer.clip.{key}", value, 0.0, math.inf, open_low=True)


def _check_schedule(config: ScheduleConfig) -> None:
    if "plateau" in config.name.lower():
        raise invalid(
            f"{_KEY}.name",
            config.name,
            problem="a schedule depends on the step alone, and lowering the rate at a plateau of a metric "
            "(ReduceLROnPlateau) is not offered",
            fix=f"set {_KEY}.name=cosine, or end the run at a plateau: trainer.early_stopping.metric=eval/loss",
        )
    one_of(f"{_KEY}.name", config.name, tuple(SCHEDULE_KEYS))
    if config.warmup_steps < 0:
        raise invalid(
            f"{_KEY}.warmup_steps", config.warmup_steps, problem="0 or more", fix=f"set {_KEY}.warmup_steps=0"
        )
    positive(f"{_KEY}.decay_steps", config.decay_steps)
    within(f"{_KEY}.decay_rate", config.decay_rate, 0.0, math.inf, open_low=True)
    within(f"{_KEY}.final_factor", config.final_factor, 0.0, math.inf)
    _check_schedule_keys(config)
    if config.name == "exponential" and config.decay_steps is None:
        raise invalid(
            f"{_KEY}.decay_steps",
            None,
            problem=f"{_KEY}.name=exponential needs it",
            fix=f"set {_KEY}.decay_steps=1000",
        )
    if config.name == "piecewise":
        _check_pieces(config)


def _check_schedule_keys(config: ScheduleConfig) -> None:
    """Refuses what another schedule would use; a key at its default stands in every option's file."""
    used = SCHEDULE_KEYS[config.name]
    every = sorted(set().union(*SCHEDULE_KEYS.values()))
    for key in changed(config, [key for key in every if key not in used]):
        first = next(name for name, keys in SCHEDULE_KEYS.items() if key in keys)
        raise invalid(
            f"{_KEY}.{key}",
            getattr(config, key),
            problem=f"{_KEY}.name={config.name} has {', '.join(used) or 'none of its own'}",
            fix=f"leave {key} out, or set {_KEY}.name={first}",
        )


def _check_pieces(config: ScheduleConfig) -> None:
    key = f"{_KEY}.factors"
    factors = config.factors
    if sorted(set(config.boundaries)) != config.boundaries or any(step < 1 for step in config.boundaries):
        raise invalid(
            f"{_KEY}.boundaries",
            config.boundaries,
            problem="steps of at least 1 that rise",
            fix=f"set {_KEY}.boundaries=[500,1000]",
        )
    fix = f"set {_KEY}.boundaries=[500] {key}=[1.0,0.1]"
    if not config.boundaries:
        allowed = f"{_KEY}.boundaries must name one step at least, where the rate changes"
        raise invalid(f"{_KEY}.name", config.name, problem=allowed, fix=fix)
    if len(factors) != len(config.boundaries) + 1:
        raise invalid(key, factors, problem=f"one more than the {len(config.boundaries)} boundaries", fix=fix)
    if not all(0 <= as_float32(factor) < math.inf for factor in factors) or not any(map(as_float32, factors)):
        raise invalid(
            key,
            factors,
            problem="numbers of at least 0, one of them above it; the learning rate is multiplied by them",
            fix=f"set {key}=[1.0,0.1]",
        )


def check_rates(config: OptimizerConfig, total_steps: int) -> None:
    """Checks that the learning rate is a number that float32 holds in every step of a run.

    Args:
      config: checked.
      total_steps: of the whole run.

    Raises:
      ConfigError: it overflows, in the step that is named.
    """
    schedule = config.schedule
    # A schedule is monotonous between these.
    turns = {0, schedule.warmup_steps, *(step + 1 for step in schedule.boundaries), total_steps - 1}
    for step in sorted(turn for turn in turns if 0 <= turn < total_steps):
        try:
            rate = as_float32(learning_rate(config, step, total_steps))
        except OverflowError:
            rate = math.inf
        if not math.isfinite(rate):
            keys = ", ".join(f"{_KEY}.{key}={getattr(schedule, key)}" for key in SCHEDULE_KEYS[schedule.name])
            raise ConfigError(
                f"optimizer.learning_rate={config.learning_rate}: with {keys} the rate is past float32 in "
                f"step {step + 1:,} of {total_steps:,}; lower the rate, or what it is multiplied by"
            )


def check_restores(config: OptimizerConfig, factor: float, restores: int) -> None:
    """Checks that the rate is still one after each return to a checkpoint, `trainer.on_nan=restore`.

    Raises:
      ConfigError: float32 takes it for 0.
    """
    most = int((math.log(config.learning_rate) - math.log(2.0**-126)) / -math.log(factor)) if factor < 1 else restores
    if restores > most:
        raise invalid(
            "trainer.nan_restores",
            restores,
            problem=f"at most {most} with trainer.nan_rate_factor={factor:g}: optimizer.learning_rate is 0 after more",
            fix=f"set trainer.nan_restores={most}" if most else "set trainer.nan_rate_factor=0.5",
        )
