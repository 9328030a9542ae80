"""Checks of `engine` between its keys and with other groups; see `runner.plan.checks.run`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from runner.cluster import place
from runner.config.schema import EngineConfig, RunConfig
from runner.config.values import changed, check_name
from runner.engine.optim.rules import OPTIMIZERS
from runner.engine.registry import ENGINES, check_installed
from runner.errors import invalid

_CORE_BUILDER = "runner.model.core.build"

# Keys whose other values need an engine that is `full`: key -> the value that asks for nothing.
_OF_FULL_ENGINES: Mapping[str, object] = {
    "layout.from_model": False,
    "layout.sequence": None,
    "model.trainable": None,
    "trainer.accumulate_steps": 1,
    "optimizer.ema.decay": None,
    "optimizer.gradient_norm": None,
    "optimizer.groups": [],
}

# A custom step computes gradients and updates itself, so keys of the run's own ones would have no effect:
# key -> the value that asks for nothing.
_NOT_WITH_OWN_STEPS: Mapping[str, object] = {
    "engine.state": "float32",
    "layout.from_model": False,
    "trainer.accumulate_steps": 1,
    "optimizer.ema.decay": None,
    "optimizer.gradient_norm": None,
    "optimizer.schedule.plateau.metric": None,
    "optimizer.groups": [],
}


def check(config: RunConfig) -> None:
    """Checks the keys of the group against each other; raises a ConfigError for the first problem."""
    # First: all other checks look at the engine's entry.
    check_name("engine.name", config.engine.name, ENGINES)
    check_installed(config.engine.name)
    _check_keys(config.engine)
    entry = ENGINES[config.engine.name]
    if config.engine.precision not in entry.precisions:
        problem = f"engine={config.engine.name} supports float32 only"
        fix = "set engine=jax, or engine.precision=float32"
        raise invalid("engine.precision", config.engine.precision, problem=problem, fix=fix)
    if config.engine.state != "float32" and config.engine.precision != "bfloat16":
        problem = "must be float32 with engine.precision=float32, whose layers use float32 weights"
        fix = "set engine.precision=bfloat16 too, or remove engine.state"
        raise invalid("engine.state", config.engine.state, problem=problem, fix=fix)
    if entry.full:
        return
    if place.count(config.cluster) > 1:
        # TensorFlow's servers ignore the address that they are given and listen on all interfaces. They authenticate
        # nobody and run every graph that they are sent, which may read and write the user's files.
        problem = "trains in one process only"
        raise invalid("engine", config.engine.name, problem=problem, fix="set engine=jax, or cluster=single")
    problem = f"engine={config.engine.name} does not support it"
    _check_unset(config, _OF_FULL_ENGINES, problem, fix="set engine=jax, or remove ")
    for name, spec in config.layout.inputs.items():
        # The features of vectors may be sharded, as in TensorFlow's tutorial; a convolution would gather images first.
        if len(spec) > 2 and any(spec[1:]):
            problem = f"engine={config.engine.name} shards images by examples only"
            raise invalid(f"layout.inputs.{name}", spec, problem=problem, fix="set engine=jax")


def _check_unset(config: RunConfig, defaults: Mapping[str, object], problem: str, fix: str) -> None:
    """Rejects a key that has another value than the given one; the fix ends with the key."""
    for key, default in defaults.items():
        value = attrgetter(key)(config)
        if value == default:
            continue
        if key == "optimizer.groups":
            value = [group.match for group in value]
        raise invalid(key, value, problem=problem, fix=fix + key)


def _check_keys(config: EngineConfig) -> None:
    own = ENGINES[config.name].keys
    for engine_name, entry in ENGINES.items():
        # Every engine's keys are in the typed config, so only one that differs from its default was asked for.
        for key in changed(config, entry.keys):
            if key not in own:
                problem = f"engine={config.name} has no such key"
                fix = f"remove engine.{key}, or set engine={engine_name}"
                raise invalid(f"engine.{key}", getattr(config, key), problem=problem, fix=fix)


def check_model(engine: str, model: str, task: str, *, has_several: bool) -> None:
    """Rejects other models, and tasks with several outputs, for the engine that trains tf.Modules."""
    if not ENGINES[engine].takes_layouts:
        return
    if model != _CORE_BUILDER:
        problem = f"trains the tf.Modules of model=mlp_core, not model._target_={model}"
        raise invalid("engine", engine, problem=problem, fix="set model=mlp_core, or choose another engine")
    if has_several:
        problem = f"trains models of one output, but task={task} judges several"
        raise invalid("engine", engine, problem=problem, fix="set engine=keras_dtensor or engine=jax")


def check_own_step(config: RunConfig) -> None:
    """Rejects what a custom step does not go with."""
    engine = config.engine.name
    if not ENGINES[engine].full:
        raise invalid("engine", engine, problem="can't compute custom steps (task=step)", fix="set engine=jax")
    problem = "acts on the run's own model or optimizer, but task=step has its own (docs/custom_steps.md)"
    _check_unset(config, _NOT_WITH_OWN_STEPS, problem, fix="remove ")
    if OPTIMIZERS[config.optimizer.name].is_transformation:
        problem = "task=step gives build an optimizer of Keras"
        fix = "set optimizer=keras, or make the optimizers in build"
        raise invalid("optimizer", config.optimizer.name, problem=problem, fix=fix)
