"""Checks between keys of `optimizer`; see `runner.plan.checks.run`."""

from __future__ import annotations

from runner.config.schema import ClipConfig, OptimizerConfig, ScheduleConfig
from runner.config.values import changed, check_finite, check_name
from runner.engine.optim import groups, transformation
from runner.engine.optim.keras_classes import CLASSES
from runner.engine.optim.rules import OPTIMIZERS
from runner.engine.optim.schedules import SCHEDULES, WARMUP_KEYS
from runner.errors import invalid

_SCHEDULE = "optimizer.schedule"


def check(config: OptimizerConfig, *, runs_keras_3: bool) -> None:
    """Checks the keys of the group against each other; raises a ConfigError for the first problem."""
    check_name("optimizer.name", config.name, OPTIMIZERS)
    entry = OPTIMIZERS[config.name]
    _check_class(config)
    if entry.make_rule is None and not runs_keras_3:
        raise invalid("optimizer", config.name, problem="needs an engine that computes with JAX", fix="set engine=jax")
    if entry.is_transformation:
        transformation.check(config)
    elif config.target:
        problem = f"optimizer={config.name} calls no function"
        fix = "set optimizer=optax, or remove the key"
        raise invalid("optimizer._target_", config.target, problem=problem, fix=fix)
    _check_rule_keys(config)
    # What a class of Keras has by default, Keras knows.
    groups.check(config, has_weight_decay=bool(config.weight_decay) or entry.is_keras_class)
    for name, other in OPTIMIZERS.items():
        for key in other.bug_keys:
            if getattr(config, key) and key not in entry.bug_keys:
                problem = f"reproduces a bug of {other.keras_class} and works with optimizer={name} only"
                raise invalid(f"optimizer.{key}", True, problem=problem, fix=f"remove optimizer.{key}")
    if config.nesterov and not config.momentum:
        problem = "needs a momentum, but optimizer.momentum is 0"
        raise invalid("optimizer.nesterov", True, problem=problem, fix="set optimizer.momentum=0.9")
    _check_clip(config.clip)
    _check_schedule(config.schedule)


def _check_class(config: OptimizerConfig) -> None:
    key = "optimizer.class_name"
    if not OPTIMIZERS[config.name].is_keras_class:
        if config.class_name is not None:
            problem = f"optimizer={config.name} is not a Keras class"
            raise invalid(key, config.class_name, problem=problem, fix=f"set optimizer=keras, or remove {key}")
        return
    if config.class_name is None:
        raise invalid(key, None, problem="optimizer=keras needs a class", fix=f"set {key}=AdamW")
    check_name(key, config.class_name, CLASSES)
    check_finite(config.options, "optimizer")


def _check_rule_keys(config: OptimizerConfig) -> None:
    used = OPTIMIZERS[config.name].keys
    for key in sorted({key for entry in OPTIMIZERS.values() for key in entry.keys}):
        value = getattr(config, key)
        if value is not None and key not in used:
            problem = f"optimizer={config.name} has no such key (its keys: {', '.join(used)})"
            raise invalid(f"optimizer.{key}", value, problem=problem, fix=f"remove optimizer.{key}")
        if value is None and key in used:
            problem = f"optimizer={config.name} needs a value"
            raise invalid(f"optimizer.{key}", None, problem=problem, fix=f"set optimizer.{key}")


def _check_clip(config: ClipConfig) -> None:
    # Keras's optimizers accept one of the three only, too.
    used = [key for key in ("norm", "global_norm", "value") if getattr(config, key) is not None]
    if len(used) > 1:
        first, second = used[:2]
        problem = f"only one kind of gradient clipping can be used, but clip.{first} is set too"
        fix = f"set optimizer.clip.{first}=null, or remove optimizer.clip.{second}"
        raise invalid(f"optimizer.clip.{second}", getattr(config, second), problem=problem, fix=fix)


def _check_schedule(config: ScheduleConfig) -> None:
    key = f"{_SCHEDULE}.name"
    check_name(key, config.name, SCHEDULES)
    _check_schedule_keys(config)
    if config.name == "exponential" and config.decay_steps is None:
        problem = f"{key}=exponential needs a value"
        raise invalid(f"{_SCHEDULE}.decay_steps", None, problem=problem, fix=f"set {_SCHEDULE}.decay_steps=1000")
    if config.name == "piecewise":
        _check_pieces(config)


def _check_schedule_keys(config: ScheduleConfig) -> None:
    used = (*WARMUP_KEYS, *SCHEDULES[config.name].keys)
    if config.initial_factor and not config.warmup_steps:
        problem = "is the rate at which a warm-up starts, but there is none"
        fix = f"set {_SCHEDULE}.warmup_steps=1000, or remove {_SCHEDULE}.initial_factor"
        raise invalid(f"{_SCHEDULE}.initial_factor", config.initial_factor, problem=problem, fix=fix)
    keys_of_others = sorted({key for entry in SCHEDULES.values() for key in entry.keys}.difference(used))
    for key in changed(config, keys_of_others):
        first = next(name for name, entry in SCHEDULES.items() if key in entry.keys)
        problem = f"{_SCHEDULE}.name={config.name} has no such key (its keys: {', '.join(used)})"
        fix = f"remove {_SCHEDULE}.{key}, or set {_SCHEDULE}.name={first}"
        raise invalid(f"{_SCHEDULE}.{key}", getattr(config, key), problem=problem, fix=fix)


def _check_pieces(config: ScheduleConfig) -> None:
    key = f"{_SCHEDULE}.factors"
    # One factor holds before each boundary, and one after the last.
    needed = len(config.boundaries) + 1
    if len(config.factors) != needed:
        problem = f"must have {needed} entries, one more than {_SCHEDULE}.boundaries"
        raise invalid(key, config.factors, problem=problem, fix=f"set {_SCHEDULE}.boundaries=[500] {key}=[1.0,0.1]")
    if not any(config.factors):
        problem = "must have an entry above 0, as the learning rate is multiplied by them"
        raise invalid(key, config.factors, problem=problem, fix=f"set {_SCHEDULE}.boundaries=[500] {key}=[1.0,0.1]")
