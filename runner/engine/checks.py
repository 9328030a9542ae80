"""Checks of `engine` between its keys and with other groups; see `runner.plan.checks.run`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from runner.cluster import place
from runner.config.schema import ClusterConfig, EngineConfig, LayoutConfig, RunConfig
from runner.config.values import changed, check_name
from runner.engine.optim.rules import OPTIMIZERS
from runner.engine.registry import ENGINES, check_installed
from runner.errors import invalid
from runner.layout.axes import REPLICA, batch_axis, names_of
from runner.task import registry as tasks

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
    """Checks the keys of the group against each other, and what an engine can't do; a ConfigError for the first."""
    engine = config.engine.name
    # First: all other checks look at the engine's entry.
    check_name("engine.name", engine, ENGINES)
    check_installed(engine)
    _check_keys(config.engine)
    task = tasks.entry(config.task)
    unset: Mapping[str, object] = {}
    problem = ""
    fix = "remove "
    if not ENGINES[engine].full:
        _check_tensorflow(engine, config.cluster, config.layout, config.mesh.axes)
        if task.own_step or task.of_model:
            raise invalid("engine", engine, problem=f"can't compute task={config.task.name}", fix="set engine=jax")
        if ENGINES[engine].takes_layouts:
            _check_core(engine, config.model.target, config.task.name, has_several=task.has_outputs)
        unset = _OF_FULL_ENGINES
        problem = f"engine={engine} does not support it"
        fix = "set engine=jax, or remove "
    elif task.own_step:
        unset = _NOT_WITH_OWN_STEPS
        problem = "acts on the run's own model or optimizer, but task=step has its own"
        problem += ' (see "Custom steps" in the docs)'
        optimizer = OPTIMIZERS.get(config.optimizer.name)
        # An unknown name is rejected with the keys of the optimizer.
        if optimizer is not None and optimizer.is_transformation:
            reason = "task=step gives build an optimizer of Keras"
            other = "set optimizer=keras, or make the optimizers in build"
            raise invalid("optimizer", config.optimizer.name, problem=reason, fix=other)
    for key, default in unset.items():
        value = attrgetter(key)(config)
        if value == default:
            continue
        if key == "optimizer.groups":
            value = [group.match for group in value]
        raise invalid(key, value, problem=problem, fix=fix + key)


def _check_keys(config: EngineConfig) -> None:
    """Checks that the engine has the keys that are set, and dtypes that fit together."""
    own = ENGINES[config.name]
    for engine_name, entry in ENGINES.items():
        # Every engine's keys are in the typed config, so only one that differs from its default was asked for.
        for key in changed(config, entry.keys):
            if key not in own.keys:
                problem = f"engine={config.name} has no such key"
                fix = f"remove engine.{key}, or set engine={engine_name}"
                raise invalid(f"engine.{key}", getattr(config, key), problem=problem, fix=fix)
    if config.precision not in own.precisions:
        problem = f"engine={config.name} supports float32 only"
        fix = "set engine=jax, or engine.precision=float32"
        raise invalid("engine.precision", config.precision, problem=problem, fix=fix)
    if config.state != "float32" and config.precision != "bfloat16":
        problem = "must be float32 with engine.precision=float32, whose layers use float32 weights"
        fix = "set engine.precision=bfloat16 too, or remove engine.state"
        raise invalid("engine.state", config.state, problem=problem, fix=fix)


def _check_tensorflow(engine: str, cluster: ClusterConfig, layout: LayoutConfig, axes: Mapping[str, int]) -> None:
    """Rejects several processes, and examples that are sharded in a way that DTensor's engines do not know."""
    if place.count(cluster) > 1:
        # TensorFlow's servers ignore the address that they are given and listen on all interfaces. They authenticate
        # nobody and run every graph that they are sent, which may read and write the user's files.
        problem = "trains in one process only"
        raise invalid("engine", engine, problem=problem, fix="set engine=jax, or cluster=single")
    # One that the mesh does not have is rejected with the layout.
    if REPLICA in axes and REPLICA in names_of(batch_axis(layout, axes)):
        problem = f"engine={engine} shards the examples over one axis only"
        fix = "set engine=jax, or use the axis batch alone"
        raise invalid(f"mesh.axes.{REPLICA}", axes[REPLICA], problem=problem, fix=fix)
    for name, spec in layout.inputs.items():
        # The features of vectors may be sharded, as in TensorFlow's tutorial; a convolution would gather images first.
        if len(spec) > 2 and any(spec[1:]):
            problem = f"engine={engine} shards images by examples only"
            raise invalid(f"layout.inputs.{name}", spec, problem=problem, fix="set engine=jax")


def _check_core(engine: str, model: str, task: str, *, has_several: bool) -> None:
    """Rejects other models, and tasks with several outputs, for the engine that trains tf.Modules."""
    if model != _CORE_BUILDER:
        problem = f"trains the tf.Modules of model=mlp_core, not model._target_={model}"
        raise invalid("engine", engine, problem=problem, fix="set model=mlp_core, or choose another engine")
    if has_several:
        problem = f"trains models of one output, but task={task} judges several"
        raise invalid("engine", engine, problem=problem, fix="set engine=keras_dtensor or engine=jax")
