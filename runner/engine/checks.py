"""Checks of `engine` and `against`, between their keys and with other groups.

They are called by `runner.plan.checks.run`.
"""

from __future__ import annotations

from runner.config.schema import EngineConfig, RunConfig
from runner.config.values import changed, check_name
from runner.engine.optim.registry import OPTIMIZERS
from runner.engine.registry import ENGINES, check_installed
from runner.errors import invalid
from runner.model import target


def check(config: RunConfig) -> None:
    """Checks the keys of the two groups against each other.

    Args:
      config: whose single values are checked.

    Raises:
      ConfigError: the first problem.
    """
    # First: all other checks look at the engine's entry.
    check_name("engine.name", config.engine.name, ENGINES)
    check_installed(config.engine.name)
    if config.layout.from_model and not ENGINES[config.engine.name].full:
        raise invalid(
            "layout.from_model",
            True,
            problem=f"engine={config.engine.name} does not support layout maps of models",
            fix="set engine=jax, or layout=megatron",
        )
    _check_precision(config.engine)
    _check_keys(config.engine)
    _check_state(config.engine)


def _check_keys(config: EngineConfig) -> None:
    """Rejects changed keys of other engines."""
    own = ENGINES[config.name].keys
    for engine_name, entry in ENGINES.items():
        # Every engine's keys are in the typed config, so only one that differs from its default was asked for.
        for key in changed(config, entry.keys):
            if key in own:
                continue
            raise invalid(
                f"engine.{key}",
                getattr(config, key),
                problem=f"engine={config.name} has no such key",
                fix=f"remove engine.{key}, or set engine={engine_name}",
            )


def check_builder(config: RunConfig) -> None:
    """Rejects a builder of Keras models for the engine that trains tf.Modules; `model` is checked."""
    engine = config.engine.name
    if ENGINES[engine].takes_layouts and not target.takes_layouts(config.model):
        raise invalid(
            "engine",
            engine,
            problem=f"needs a builder with a parameter `{target.LAYOUTS}`, which model._target_="
            f"{config.model.target} lacks",
            fix="set model=mlp_core, or choose another engine for a builder of Keras models",
        )


def check_trainable(config: RunConfig) -> None:
    """Rejects `model.trainable` for engines that train every variable."""
    patterns = config.model.trainable
    if patterns is None:
        return
    engine = config.engine.name
    if not ENGINES[engine].full:
        raise invalid(
            "model.trainable",
            patterns,
            problem=f"engine={engine} can't freeze variables",
            fix="set engine=jax, or remove model.trainable",
        )


def _check_precision(config: EngineConfig) -> None:
    key = "engine.precision"
    precision = config.precision
    if precision not in ENGINES[config.name].precisions:
        raise invalid(
            key,
            precision,
            problem=f"engine={config.name} supports float32 only",
            fix=f"set engine=jax, or {key}=float32",
        )


def _check_state(config: EngineConfig) -> None:
    if config.state != "float32" and config.precision != "bfloat16":
        raise invalid(
            "engine.state",
            config.state,
            problem=f"must be float32 with engine.precision={config.precision}, whose layers use float32 weights",
            fix="set engine.precision=bfloat16 too, or remove engine.state",
        )


def check_outputs(config: RunConfig, *, has_several: bool) -> None:
    """Rejects engines whose models have a single output, if the task judges several.

    Args:
      config: whose single values are checked.
      has_several: the task judges several outputs, see `runner.task.registry.TaskEntry`.

    Raises:
      ConfigError: names the key to change.
    """
    if not has_several:
        return
    engine = config.engine.name
    if ENGINES[engine].takes_layouts:
        problem = f"trains models of one output, but task={config.task.name} judges several"
        raise invalid("engine", engine, problem=problem, fix="set engine=keras_dtensor or engine=jax")


def check_own_step(config: RunConfig, *, own_step: bool) -> None:
    """Rejects what a custom step does not go with.

    Args:
      config: whose single values are checked.
      own_step: the task is one, see `runner.task.registry.TaskEntry`.

    Raises:
      ConfigError: names the key to change.
    """
    if not own_step:
        return
    engine = config.engine.name
    if not ENGINES[engine].full:
        raise invalid("engine", engine, problem="can't compute custom steps (task=step)", fix="set engine=jax")
    # A custom step computes gradients and updates itself, so keys of the run's own ones would have no effect.
    if config.engine.state != "float32":
        raise invalid(
            "engine.state",
            config.engine.state,
            problem="must be float32 with task=step, whose optimizers store what they compute",
            fix="remove engine.state",
        )
    if config.trainer.accumulate_steps > 1:
        raise invalid(
            "trainer.accumulate_steps",
            config.trainer.accumulate_steps,
            problem="must be 1 with task=step, which takes the gradients itself",
            fix="accumulate in train_step, or pass gradient_accumulation_steps to its optimizers",
        )
    if config.trainer.on_nan == "restore":
        raise invalid(
            "trainer.on_nan",
            "restore",
            problem="lowers the learning rate of the run's optimizer, but task=step has optimizers of its own",
            fix="set trainer.on_nan=stop",
        )
    if config.optimizer.ema.decay is not None:
        raise invalid(
            "optimizer.ema.decay",
            config.optimizer.ema.decay,
            problem="has no effect with task=step",
            fix="keep the average as a model of the class, see docs/custom_steps.md",
        )
    if config.optimizer.gradient_norm is not None:
        raise invalid(
            "optimizer.gradient_norm",
            config.optimizer.gradient_norm,
            problem="needs the run's own gradients, but task=step takes its own",
            fix="return the norm as a metric of train_step and name it in task.log",
        )
    if OPTIMIZERS[config.optimizer.name].is_transformation:
        raise invalid(
            "optimizer",
            config.optimizer.name,
            problem="task=step gives build an optimizer of Keras",
            fix="set optimizer=keras, or make the optimizers in build",
        )
    if config.optimizer.schedule.plateau.metric is not None:
        raise invalid(
            "optimizer.schedule.plateau.metric",
            config.optimizer.schedule.plateau.metric,
            problem="lowers the learning rate of the run's optimizer, but task=step has optimizers of its own",
            fix="choose a schedule, or remove it",
        )
    if config.optimizer.groups:
        raise invalid(
            "optimizer.groups",
            [group.match for group in config.optimizer.groups],
            problem="are groups of the run's optimizer, but task=step has optimizers of its own",
            fix="make one optimizer per group in build, or call exclude_from_weight_decay there",
        )
    if config.layout.from_model:
        raise invalid(
            "layout.from_model",
            True,
            problem="needs one model, but task=step has several",
            fix="write the rules in the layout, such as layout=fsdp_megatron",
        )
