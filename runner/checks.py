"""What a config must satisfy before anything heavy is imported. Each check raises `ConfigError` with its mend."""

from __future__ import annotations

import importlib.util
import math

from runner import checks_trainer, layout, mesh
from runner.checks_values import one_of, positive, within
from runner.dataset.splits import parse_split
from runner.engine import jax_environment
from runner.errors import refuse
from runner.model import target
from runner.optimizer import RULE_KEYS, SCHEDULES
from runner.schema import ClipConfig, DatasetConfig, OptimizerConfig, RunConfig, ScheduleConfig
from runner.tracking.secrets import TRACKING, reveal

ENGINES = ("keras_dtensor", "core_dtensor", "jax")


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
    if config.engine.intra_op_threads is not None:
        positive("engine.intra_op_threads", config.engine.intra_op_threads)
    config.mesh.axes = mesh.resolve_axes(config.mesh)
    layout.check(config.layout, config.mesh.axes)
    target.check(config.model)
    _check_optimizer(config.optimizer)
    _check_dataset(config.dataset)
    checks_trainer.check(config.trainer)
    positive("verify.steps", config.verify.steps)
    one_of("tracking.name", config.tracking.name, ("mlflow", "none"))
    if config.tracking.name == "none" and config.tracking.uri is not None:
        raise refuse(
            "tracking.uri",
            config.tracking.uri,
            allowed="tracking=none records nowhere, so the two exclude each other",
            mend="leave out one of tracking=none and tracking.uri",
        )
    if config.tracking.uri is not None:
        reveal(TRACKING, config.tracking.uri)
    for key in ("bandwidth_gb_s", "gflops"):
        within(f"plan.{key}", getattr(config.plan, key), 0.0, math.inf, open_low=True)
    if not config.tracking.experiment.strip():
        raise refuse("tracking.experiment", "''", allowed="a name", mend="set tracking.experiment=my_experiment")
    if config.export.folder is not None and not config.export.folder.strip():
        raise refuse("export.folder", "''", allowed="a folder, or null", mend="set export.folder=outputs/served")
    one_of("sweep.direction", config.sweep.direction, ("maximize", "minimize"))
    _check_batches(config)


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


def _check_optimizer(config: OptimizerConfig) -> None:
    one_of("optimizer.name", config.name, tuple(RULE_KEYS))
    within("optimizer.learning_rate", config.learning_rate, 0.0, math.inf, open_low=True)
    used = RULE_KEYS[config.name]
    for key in sorted(set().union(*RULE_KEYS.values())):
        if getattr(config, key) is not None and key not in used:
            raise refuse(
                f"optimizer.{key}",
                getattr(config, key),
                allowed=f"{config.name} has {', '.join(used)}",
                mend=f"leave {key} out or choose an optimizer that has it",
            )
        if getattr(config, key) is None and key in used:
            raise refuse(f"optimizer.{key}", None, allowed=f"{config.name} needs a value", mend=f"set optimizer.{key}")
    for key in ("beta_1", "beta_2", "momentum", "rho"):
        within(f"optimizer.{key}", getattr(config, key), 0.0, 1.0)
    within("optimizer.weight_decay", config.weight_decay, 0.0, math.inf)
    within("optimizer.epsilon", config.epsilon, 0.0, math.inf, open_low=True)
    for key in ("frozen_step", "reread_slots"):
        if getattr(config, key) and config.name != "adam":
            raise refuse(
                f"optimizer.{key}", True, allowed="a slip of an Adam, for optimizer=adam", mend=f"leave {key} out"
            )
    if config.nesterov and not config.momentum:
        raise refuse(
            "optimizer.nesterov",
            True,
            allowed="nesterov looks ahead along the momentum, which is 0",
            mend="set optimizer.momentum=0.9 or optimizer.nesterov=false",
        )
    within("optimizer.ema.decay", config.ema.decay, 0.0, 1.0)
    _check_clip(config.clip)
    _check_schedule(config.schedule)


def _check_clip(config: ClipConfig) -> None:
    given = {key: value for key in ("norm", "global_norm", "value") if (value := getattr(config, key)) is not None}
    if len(given) > 1:
        raise refuse(
            f"optimizer.clip.{list(given)[1]}",
            list(given.values())[1],
            allowed=f"only one kind of clipping, and clip.{next(iter(given))} is set",
            mend=f"set optimizer.clip.{next(iter(given))}=null or leave this one out",
        )
    for key, value in given.items():
        within(f"optimizer.clip.{key}", value, 0.0, math.inf, open_low=True)


def _check_schedule(config: ScheduleConfig) -> None:
    key = "optimizer.schedule"
    one_of(f"{key}.name", config.name, SCHEDULES)
    if config.warmup_steps < 0:
        raise refuse(f"{key}.warmup_steps", config.warmup_steps, allowed="0 or more", mend=f"set {key}.warmup_steps=0")
    if config.decay_steps is not None:
        positive(f"{key}.decay_steps", config.decay_steps)
    within(f"{key}.decay_rate", config.decay_rate, 0.0, math.inf, open_low=True)
    within(f"{key}.final_factor", config.final_factor, 0.0, math.inf)
    if config.name == "exponential" and config.decay_steps is None:
        raise refuse(f"{key}.decay_steps", None, allowed="exponential needs it", mend=f"set {key}.decay_steps=1000")
    if config.warmup_steps and config.name != "cosine":
        raise refuse(
            f"{key}.warmup_steps",
            config.warmup_steps,
            allowed="only cosine warms up",
            mend=f"set {key}.name=cosine or {key}.warmup_steps=0",
        )
    if config.name == "piecewise":
        if sorted(set(config.boundaries)) != config.boundaries or any(step < 1 for step in config.boundaries):
            raise refuse(
                f"{key}.boundaries",
                config.boundaries,
                allowed="steps of at least 1 that rise",
                mend=f"set {key}.boundaries=[500,1000]",
            )
        if not config.boundaries or len(config.factors) != len(config.boundaries) + 1:
            raise refuse(
                f"{key}.factors",
                config.factors,
                allowed=f"one more than the {len(config.boundaries)} boundaries, of which there must be one at least",
                mend=f"set {key}.boundaries=[500] {key}.factors=[1.0,0.1]",
            )
    elif config.boundaries or config.factors:
        raise refuse(
            f"{key}.boundaries",
            config.boundaries,
            allowed=f"schedule {config.name} has none",
            mend=f"set {key}.name=piecewise",
        )


def _check_dataset(config: DatasetConfig) -> None:
    positive("dataset.batch_size", config.batch_size)
    if config.eval_batch_size is not None:
        positive("dataset.eval_batch_size", config.eval_batch_size)
    if not config.name.strip():
        raise refuse("dataset.name", "''", allowed="the name of a TFDS builder or digits", mend="set dataset=mnist")
    for key in ("train", "eval"):
        try:
            parse_split(getattr(config, key))
        except ValueError as error:
            raise refuse(
                f"dataset.{key}", getattr(config, key), allowed=str(error), mend=f"write dataset.{key}='train[:5000]'"
            ) from error
    one_of("dataset.remainder", config.remainder, ("drop", "pad"))
    positive("dataset.prefetch", config.prefetch)
    if config.image_size is not None and (len(config.image_size) != 2 or min(config.image_size) < 1):
        raise refuse(
            "dataset.image_size",
            config.image_size,
            allowed="[height, width], each at least 1",
            mend="set dataset.image_size=[64,64]",
        )


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
