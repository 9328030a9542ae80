"""What a config comes to on its dataset: steps, batches and the memory that they take. Checked before an engine is."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import RunConfig
from runner.data.base import ArraySpec, DataSource
from runner.data.sampler import steps_in_epoch
from runner.errors import ConfigError, invalid
from runner.layout.axes import batch_axis
from runner.optim import checks as checks_optimizer

_MOST_STEPS = 2**31 - 1  # engines count steps in int32
_MOST_BYTES = 4 << 30  # of examples that are made ready at once
_EVAL_BATCH = 1000


def epoch_steps(config: RunConfig, examples: int) -> int:
    """Returns the steps of one epoch.

    Raises:
      ConfigError: the split holds less than one batch, or fewer than the config wants.
    """
    batch = config.dataset.batch_size
    steps = steps_in_epoch(examples, batch, config.dataset.remainder)
    if batch > examples:
        _check_batch(config, examples)
    for key in ("steps_per_epoch", "overfit_batches"):
        wanted = getattr(config.trainer, key)
        if wanted is not None and wanted > steps:
            raise ConfigError(
                f"trainer.{key}={wanted}: split {config.dataset.train} has {steps} batches of "
                f"{batch}; set trainer.{key}={steps} or less"
            )
        steps = wanted or steps
    return min(steps, config.trainer.limit_train_batches or steps)


def _check_batch(config: RunConfig, examples: int) -> None:
    """Refuses a batch that the split can't fill, or that padding fills by more than what the mesh asks for."""
    batch = config.dataset.batch_size
    whole = _batch_axis(config) * config.trainer.accumulate_steps
    most = examples // whole * whole if config.dataset.remainder == "drop" else _rounded_up(examples, whole)
    if batch > most:
        raise invalid(
            "dataset.batch_size",
            batch,
            problem=f"at most {most}, by the {examples} examples of split {config.dataset.train}",
            fix=f"set dataset.batch_size={most} or less" if most else "set dataset.remainder=pad",
        )


def total_steps(config: RunConfig, examples: int) -> int:
    """Returns the steps of a whole run.

    Raises:
      ConfigError: as `epoch_steps`; there are more than can be counted; or the learning rate overflows in one.
    """
    per_epoch = epoch_steps(config, examples)
    epochs = config.trainer.epochs
    total = epochs * per_epoch
    if total > _MOST_STEPS:
        raise invalid(
            "trainer.epochs",
            epochs,
            problem=f"at most {_MOST_STEPS // per_epoch} of {per_epoch} steps, as steps are counted in int32",
            fix=f"set trainer.epochs={_MOST_STEPS // per_epoch} or less",
        )
    checks_optimizer.check_rates(config.optimizer, total)
    return total


def eval_examples(config: RunConfig, examples: int) -> int:
    """Returns how many examples a batch of an evaluation holds, whatever the mesh is.

    A loss or metric that reads other rows of its batch depends on which examples are together in one.

    Args:
      config: checked.
      examples: of the split.
    """
    wanted = config.dataset.eval_batch_size or max(config.dataset.batch_size, _EVAL_BATCH)
    return min(wanted, examples)


def eval_batch_size(config: RunConfig, examples: int) -> int:
    """Returns the rows of an evaluation's batch: its examples, and padding up to a multiple of the batch axis.

    Args:
      config: checked.
      examples: of the split.
    """
    return _rounded_up(eval_examples(config, examples), _batch_axis(config))


def check_memory(config: RunConfig, source: DataSource) -> None:
    """Checks the examples that training holds at once, on their way to the devices.

    Args:
      config: checked.
      source: training examples.

    Raises:
      ConfigError: they take more than 4 GiB.
    """
    epoch = epoch_steps(config, source.size)
    most = _most_steps(config, source)
    for key, calls in (("trainer.steps_per_call", 1), ("dataset.prefetch", config.dataset.prefetch)):
        a_call = min(config.trainer.steps_per_call or 1, epoch)
        if min(a_call * calls, epoch) > most:
            value = config.trainer.steps_per_call if calls == 1 else calls
            bound = most if calls == 1 else max(1, most // a_call)
            raise invalid(key, value, problem=f"at most {bound}, whose examples take 4 GiB", fix=f"set {key}={bound}")


def check_verified(config: RunConfig, source: DataSource) -> None:
    """Checks that the batches of `verify.steps` fit into memory.

    Raises:
      ConfigError: their examples take more than 4 GiB.
    """
    most = _most_steps(config, source)
    if config.verify.steps > most:
        raise invalid(
            "verify.steps",
            config.verify.steps,
            problem=f"at most {most}, whose examples take 4 GiB",
            fix=f"set verify.steps={min(most, 20)}",
        )


def bytes_a_step(config: RunConfig, arrays: Mapping[str, ArraySpec]) -> int:
    """Returns the bytes of a global batch of such arrays."""
    return config.dataset.batch_size * sum(spec.bytes for spec in arrays.values())


def _most_steps(config: RunConfig, source: DataSource) -> int:
    return max(1, _MOST_BYTES // max(bytes_a_step(config, source.specs), 1))


def _batch_axis(config: RunConfig) -> int:
    axis = batch_axis(config.layout, config.mesh.axes)
    return config.mesh.axes[axis] if axis else 1


def _rounded_up(count: int, size: int) -> int:
    return -(-count // size) * size
