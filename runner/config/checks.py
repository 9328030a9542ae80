"""What a config must satisfy before anything heavy is imported. Each check raises `ConfigError` with its mend."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

from runner import layout, mesh, metrics, task
from runner.config import checks_data, checks_optimizer, checks_trainer
from runner.config.checks_values import changed, finite, folder, numbers, one_of, positive, within
from runner.config.errors import refuse
from runner.config.schema import EngineConfig, ModelConfig, RunConfig, SweepConfig
from runner.config.secrets import TRACKING, reveal
from runner.engine.jax import environment as jax_environment
from runner.model import target
from runner.task import metric_directions
from runner.tracking import uri

ENGINES = ("keras_dtensor", "core_dtensor", "jax")
_MOST_THREADS = 1024
_OF_JAX = ("loop", "data", "compilation_cache")
_OF_DTENSOR = ("combine_all_reduces", "intra_op_threads", "canary")


def check(config: RunConfig) -> None:
    """Checks every group, then what lies between groups.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    one_of("engine.name", config.engine.name, ENGINES)
    for key in ("loop", "data"):
        one_of(f"engine.{key}", getattr(config.engine, key), ("auto", "device", "host"))
    if config.engine.name == "jax":
        jax_environment.check_installed()
    _check_against(config)
    _check_precision(config)
    _check_engine_keys(config.engine)
    config.mesh.axes = mesh.resolve_axes(config.mesh)
    layout.check(config.layout, config.mesh.axes)
    target.check(config.model)
    _check_builder(config)
    checks_optimizer.check(config.optimizer)
    checks_data.check(config.dataset)
    task.check(config.task)
    checks_trainer.check(config.trainer, metric_directions(config.task))
    positive("verify.steps", config.verify.steps)
    one_of("tracking.name", config.tracking.name, ("mlflow", "none"))
    if config.tracking.name == "none" and config.tracking.uri is not None:
        raise refuse(
            "tracking.uri",
            config.tracking.uri,
            allowed="tracking=none records nowhere, so the two exclude each other",
            mend="leave out one of tracking=none and tracking.uri",
        )
    uri.check(config.tracking)
    if config.tracking.uri is not None:
        reveal(TRACKING, config.tracking.uri)
    for key in ("bandwidth_gb_s", "gflops"):
        within(f"plan.{key}", getattr(config.plan, key), 0.0, math.inf, open_low=True)
    if not config.tracking.experiment.strip():
        raise refuse("tracking.experiment", "''", allowed="a name", mend="set tracking.experiment=my_experiment")
    if config.export.folder is not None and not config.export.folder.strip():
        raise refuse("export.folder", "''", allowed="a folder, or null", mend="set export.folder=outputs/served")
    folder("export.folder", config.export.folder)
    check_sweep(config.sweep)
    _check_batches(config)
    if config.trainer.on_nan == "restore":
        trainer = config.trainer
        checks_optimizer.check_restores(config.optimizer, trainer.nan_rate_factor, trainer.nan_restores)
    finite(config.model.options, "model.")
    numbers(replace(config, model=ModelConfig(), dataset=replace(config.dataset, options={}, augment=[])))


def _check_engine_keys(config: EngineConfig) -> None:
    """Refuses keys of the other engines; at their defaults they stand in no option's file, but in the schema."""
    key, threads = "engine.intra_op_threads", config.intra_op_threads
    if threads is not None:
        positive(key, threads)
        if threads > _MOST_THREADS:
            raise refuse(key, threads, allowed=f"at most {_MOST_THREADS}", mend=f"leave {key} out")
    for other in changed(config, _OF_DTENSOR if config.name == "jax" else _OF_JAX):
        raise refuse(
            f"engine.{other}",
            getattr(config, other),
            allowed=f"engine.name={config.name} has no such key",
            mend=f"leave {other} out, or set engine={'keras_dtensor' if config.name == 'jax' else 'jax'}",
        )


def check_sweep(config: SweepConfig) -> None:
    """Checks what a sweep compares its jobs by.

    Raises:
      ConfigError: no run logs that metric, or its best job would be the worst.
    """
    one_of("sweep.direction", config.direction, metrics.DIRECTIONS)
    one_of("sweep.metric", config.metric, tuple(metrics.LOGGED))
    better = metrics.LOGGED[config.metric]
    if better not in (None, config.direction):
        raise refuse(
            "sweep.direction",
            config.direction,
            allowed=f"{better} with sweep.metric={config.metric}, the worst job would be the best otherwise",
            mend=f"set sweep.direction={better}",
        )


def _check_builder(config: RunConfig) -> None:
    """Refuses a builder of Keras models for the engine that trains none."""
    for key, engine in (("engine.name", config.engine.name), ("against.engine", config.against.engine)):
        if engine == "core_dtensor" and not target.takes(config.model, target.LAYOUTS):
            raise refuse(
                key,
                engine,
                allowed=f"it trains what takes `{target.LAYOUTS}`, and model._target_={config.model.target} does not",
                mend="set model=mlp_core, or another engine for a builder of Keras models",
            )


def _check_precision(config: RunConfig) -> None:
    key, precision = "engine.precision", config.engine.precision
    one_of(key, precision, ("float32", "bfloat16"))
    allowed = "float32 with engine {}, whose models take DTensor layouts or mixed precision, not both"
    if precision != "float32" and config.engine.name != "jax":
        raise refuse(
            key, precision, allowed=allowed.format(config.engine.name), mend=f"set engine=jax or {key}=float32"
        )
    if precision != "float32" and config.against.engine is not None:
        raise refuse(
            key, precision, allowed=allowed.format(config.against.engine), mend=f"set {key}=float32 to compare engines"
        )


def _check_against(config: RunConfig) -> None:
    key, other = "against.engine", config.against.engine
    if other is None:
        return
    one_of(key, other, ENGINES)
    if other == config.engine.name:
        raise refuse(
            key,
            other,
            allowed=f"another engine than engine.name={other}",
            mend=f"set {key}={next(name for name in ENGINES if name != other)}, or leave it out for one device",
        )
    if other == "jax":
        jax_environment.check_installed(key)
    elif importlib.util.find_spec("tensorflow") is None:
        raise refuse(key, other, allowed="it needs tensorflow, which is not installed", mend="pip install -e .")


def _check_batches(config: RunConfig) -> None:
    """The axis that splits the images' first dim must divide every batch, a training batch in each of its parts."""
    axis, parts = config.layout.inputs["image"][0], config.trainer.accumulate_steps
    size = config.mesh.axes[axis] if axis else 1
    sizes = {"batch_size": (config.dataset.batch_size, parts), "eval_batch_size": (config.dataset.eval_batch_size, 1)}
    for key, (batch, times) in sizes.items():
        whole = size * times
        if batch is not None and batch % whole:
            lower, upper = batch // whole * whole, -(-batch // whole) * whole
            near = f"{lower} or dataset.{key}={upper}" if lower else f"{upper}"
            why = f"the size of mesh axis {axis!r}" + (f" times trainer.accumulate_steps={times}" if times > 1 else "")
            raise refuse(
                f"dataset.{key}",
                batch,
                allowed=f"a multiple of {whole}, {why if size > 1 else f'trainer.accumulate_steps={times}'}",
                mend=f"set dataset.{key}={near}",
            )
    if parts > 1 and config.optimizer.reread_slots:
        raise refuse(
            "trainer.accumulate_steps",
            parts,
            allowed="1 with optimizer.reread_slots, a slip that is copied as it was",
            mend="leave out one of the two",
        )
