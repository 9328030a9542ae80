"""Conversion of the composed YAML to the typed config, and its checks before anything heavy is imported.

Single values come first, then each group, then what spans groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from runner import layout
from runner.cluster import checks as checks_cluster
from runner.config import values
from runner.config.convert import typed_config
from runner.config.schema import AUTO, RunConfig
from runner.data import checks as checks_data
from runner.engine import checks as checks_engine
from runner.engine import devices, listeners, registry
from runner.engine.optim import checks as checks_optimizer
from runner.engine.optim.rules import adam_learning_rate
from runner.errors import invalid
from runner.host.late import late
from runner.host.secrets import TRACKING, reveal
from runner.layout import mesh
from runner.layout.axes import axis_size, batch_axis
from runner.model import gpt_options, target
from runner.plan.checks import hardware as checks_hardware
from runner.plan.checks import trainer as checks_trainer
from runner.task import registry as task
from runner.tracking import location

if TYPE_CHECKING:
    from runner.model.hub import check as hub
else:
    # It imports NumPy, which `--help` and most config errors do without.
    hub = late("runner.model.hub.check")

# The packages of writers beside MLflow; each has an extra of the writer's name.
_WRITER_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}

# conf/optimizer and conf/trainer/default.yaml refer to these resolvers, which OmegaConf calls when the value
# is first read.
OmegaConf.register_new_resolver("adam_learning_rate", adam_learning_rate, replace=True)
OmegaConf.register_new_resolver("auto_if_any", checks_trainer.auto_if_any, replace=True)
OmegaConf.register_new_resolver("default_epochs", checks_trainer.default_epochs, replace=True)


def convert(composed: DictConfig) -> RunConfig:
    """Converts the composed config to dataclasses that have passed every check that needs no TensorFlow.

    Raises:
      ConfigError: an unknown key, a wrong type, a value out of range, or keys that don't fit together.
    """
    return check(typed_config(composed))


def check(config: RunConfig) -> RunConfig:
    """Returns a config whose types are checked, checked, with its devices and the sizes of its mesh axes settled.

    Raises:
      ConfigError: the first problem.
    """
    values.check(config)
    _check_name(config.resume, config.name, saves=config.trainer.checkpoint.enabled)
    values.check_finite(config.model.options, "model")
    checks_engine.check(config)
    checks_hardware.check_figures(config.hardware, config.mesh.device)
    # Everything below needs the sizes of the axes and the type of the devices.
    choice = devices.choose(config.mesh, config.engine.name, config.cluster, config.hardware)
    on_devices = replace(config.mesh, device=choice.kind)
    config = replace(config, mesh=replace(on_devices, axes=mesh.resolve_axes(on_devices, choice.count)))
    checks_hardware.check(config.hardware, config.plan.compiler, config.engine.name, config.task)
    on_jax = registry.ENGINES[config.engine.name].full
    checks_cluster.check(config.cluster, config.mesh, config.resume)
    layout.check(config.layout, config.mesh.axes)
    target.check(config.model, on_jax=on_jax)
    hub.check(config.model, config.dataset, config.engine.name, on_jax=on_jax)
    gpt_options.check(config.model, on_jax=on_jax)
    if config.run is None:
        # What was trained on GPUs may be evaluated and exported on a CPU.
        gpt_options.check_device(config.model, mesh.device_kind(config.mesh))
    checks_optimizer.check(config.optimizer, runs_keras_3=on_jax)
    checks_data.check(config.dataset, recorded=any((config.resume, config.branch, config.run)))
    gpt_options.check_rows(config.model, config.dataset)
    task.check(config.task)
    directions = task.metric_directions(config.task)
    step_metrics = task.step_metric_names(config.task)
    listeners.check(config.trainer.callbacks)
    checks_trainer.check(config.trainer, config.task.name, counts_tokens=task.entry(config.task).counts_tokens)
    if not task.entry(config.task).of_model:  # whose metrics only the built model knows
        trainer = checks_trainer.with_metrics(config.trainer, directions, step_metrics)
        checks_trainer.with_plateau_metric(config.optimizer, trainer, directions, step_metrics)
    _check_writers(config.tracking.writers)
    location.check(config.tracking)
    if config.tracking.uri is not None:
        # A recorded URI has `***` for its password; only a typed one reveals it.
        reveal(TRACKING, config.tracking.uri)
    checks_trainer.settled_sweep(config.sweep, config.task)
    axis = batch_axis(config.layout, config.mesh.axes)
    size = axis_size(config.mesh.axes, axis)
    _check_batch("batch_size", config.dataset.batch_size, axis, size, config.trainer.accumulate_steps)
    if config.hardware.is_here:
        # A plan for other hardware evaluates nothing, and the default may not fit a large mesh.
        _check_batch("eval_batch_size", config.dataset.eval_batch_size, axis, size, 1)
    return config


def _check_writers(names: Iterable[str]) -> None:
    for name in names:
        package = _WRITER_PACKAGES.get(name)
        if package and find_spec(package) is None:
            problem = f"needs {package}, which is not installed"
            raise invalid("tracking.writers", f"[{name}]", problem=problem, fix=f"pip install -e '.[{name}]'")


def _check_name(resume: str | None, name: str | None, *, saves: bool) -> None:
    if resume == AUTO and name is None:
        problem = "needs the name of the run that it begins or continues"
        raise invalid("resume", AUTO, problem=problem, fix="add name=exp1")
    if name is not None and resume != AUTO:
        problem = "is for resume=auto, which begins or continues the run of that name"
        raise invalid("name", name, problem=problem, fix="add resume=auto, or set tracking.run_name to title a run")
    if resume == AUTO and not saves:
        problem = "needs checkpoints to continue from, but trainer.checkpoint.enabled=false"
        raise invalid("resume", AUTO, problem=problem, fix="set trainer.checkpoint.enabled=true")


def _check_batch(key: str, batch: int | None, axis: str | None, size: int, microbatches: int) -> None:
    """Checks that the batch axis divides a batch, of a training batch every microbatch."""
    divisor = size * microbatches
    if batch is None or batch % divisor == 0:
        return
    reasons = []
    if size > 1:
        reasons.append(f"size of mesh axis {axis!r}")
    if microbatches > 1:
        reasons.append(f"trainer.accumulate_steps={microbatches}")
    lower = batch // divisor * divisor
    upper = lower + divisor
    nearest = str(upper)
    if lower:
        nearest = f"{lower} or dataset.{key}={upper}"
    problem = f"must be a multiple of {divisor} ({' times '.join(reasons)})"
    raise invalid(f"dataset.{key}", batch, problem=problem, fix=f"set dataset.{key}={nearest}")
