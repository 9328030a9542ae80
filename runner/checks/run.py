"""What a config must satisfy before anything heavy is imported. Each check raises `ConfigError` with its fix."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from runner import layout
from runner.checks import sweep as checks_sweep
from runner.checks import trainer as checks_trainer
from runner.config.checks_values import finite, folder, numbers, one_of, positive, within
from runner.config.schema import ModelConfig, RunConfig, TaskConfig, TrackingConfig
from runner.data import checks as checks_data
from runner.engine import checks as checks_engine
from runner.engine import devices, registry
from runner.errors import invalid
from runner.host.late import late
from runner.host.secrets import TRACKING, reveal
from runner.layout.axes import batch_axis
from runner.model import gpt_options, target
from runner.optim import checks as checks_optimizer
from runner.processes import checks as checks_cluster
from runner.task import registry as task
from runner.tracking import uri

if TYPE_CHECKING:
    from runner.model.hub import check as hub
else:
    # With NumPy, which `--help` does without.
    hub = late("runner.model.hub.check")


def check(config: RunConfig) -> None:
    """Checks every group, then what lies between groups.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    checks_engine.check(config)
    config.mesh = devices.settled(config)
    checks_cluster.check(config, registry.port_openers())
    checks_engine.check_processes(config)
    layout.check(config.layout, config.mesh.axes)
    target.check(config.model)
    hub.check(config, registry.keras_3_engines())
    checks_engine.check_builder(config)
    checks_engine.check_trainable(config)
    on_jax = registry.has_keras_3(config.engine.name)
    other_on_jax = registry.has_keras_3(config.against.engine or config.engine.name)
    gpt_options.check(config.model, on_jax=on_jax)
    gpt_options.check(config.model, "against.engine", on_jax=other_on_jax)
    gpt_options.check_against(config.model, on_jax=on_jax, other_on_jax=other_on_jax)
    checks_optimizer.check(config.optimizer)
    checks_data.check(config.dataset, recorded=any((config.resume, config.branch, config.run)))
    gpt_options.check_rows(config.model, config.dataset)
    task.check(config.task)
    checks_trainer.check(config.trainer, task.metric_directions(config.task))
    positive("verify.steps", config.verify.steps)
    within("verify.seconds", config.verify.seconds, 0.0, math.inf)
    _check_tracking(config.tracking)
    for key in ("bandwidth_gb_s", "network_gb_s", "gflops"):
        within(f"plan.{key}", getattr(config.plan, key), 0.0, math.inf, open_low=True)
    if config.export.folder is not None and not config.export.folder.strip():
        raise invalid("export.folder", "''", problem="a folder, or null", fix="set export.folder=outputs/served")
    folder("export.folder", config.export.folder)
    checks_sweep.settled(config.sweep, config.task)
    _check_batches(config)
    if config.trainer.on_nan == "restore":
        trainer = config.trainer
        checks_optimizer.check_restores(config.optimizer, trainer.nan_rate_factor, trainer.nan_restores)
    finite(config.model.options, "model.")
    plain = replace(config.dataset, options={}, augment=[])
    numbers(replace(config, model=ModelConfig(), dataset=plain, task=TaskConfig()))


def _check_tracking(config: TrackingConfig) -> None:
    one_of("tracking.name", config.name, ("mlflow", "none"))
    if config.name == "none" and config.uri is not None:
        raise invalid(
            "tracking.uri",
            config.uri,
            problem="tracking=none records nowhere, so the two exclude each other",
            fix="leave out one of tracking=none and tracking.uri",
        )
    uri.check(config)
    if config.uri is not None:
        reveal(TRACKING, config.uri)
    if not config.experiment.strip():
        raise invalid("tracking.experiment", "''", problem="a name", fix="set tracking.experiment=my_experiment")


def _check_batches(config: RunConfig) -> None:
    """The axis that splits the examples must divide every batch, a training batch in each of its microbatches."""
    axis = batch_axis(config.layout, config.mesh.axes)
    microbatches = config.trainer.accumulate_steps
    size = config.mesh.axes[axis] if axis else 1
    sizes = {
        "batch_size": (config.dataset.batch_size, microbatches),
        "eval_batch_size": (config.dataset.eval_batch_size, 1),
    }
    for key, (batch, times) in sizes.items():
        whole = size * times
        if batch is not None and batch % whole:
            lower = batch // whole * whole
            upper = -(-batch // whole) * whole
            near = f"{lower} or dataset.{key}={upper}" if lower else f"{upper}"
            why = f"the size of mesh axis {axis!r}" + (f" times trainer.accumulate_steps={times}" if times > 1 else "")
            raise invalid(
                f"dataset.{key}",
                batch,
                problem=f"a multiple of {whole}, {why if size > 1 else f'trainer.accumulate_steps={times}'}",
                fix=f"set dataset.{key}={near}",
            )
    if microbatches > 1 and config.optimizer.reread_slots:
        raise invalid(
            "trainer.accumulate_steps",
            microbatches,
            problem="1 with optimizer.reread_slots, which reproduces a bug as it was",
            fix="leave out one of the two",
        )
