"""Steps, batch sizes and input memory of a config on its dataset, checked before an engine is built."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import RunConfig
from runner.data.base import ArraySpec, DataSource
from runner.data.sampler import steps_in_epoch
from runner.errors import ConfigError, invalid
from runner.layout.axes import batch_axis
from runner.optim import checks as checks_optimizer

# Engines count steps in int32.
_MAX_STEPS = 2**31 - 1

# Bytes of examples that may be made ready at once. Without a limit, a config whose input alone fills the host's memory
# would be killed by the system in the middle of its start.
_MAX_BYTES = 4 << 30

# Examples per batch of an evaluation, unless training batches are larger: fewer calls against more memory.
_EVAL_BATCH = 1000


def epoch_steps(config: RunConfig, examples: int) -> int:
    """Returns the steps of one epoch.

    Raises:
      ConfigError: the split has less than one batch, or fewer batches than the config needs.
    """
    batch = config.dataset.batch_size
    trainer = config.trainer
    steps = steps_in_epoch(examples, batch, config.dataset.remainder)
    if batch > examples:
        _check_batch(config, examples)
    for key, limit in (("steps_per_epoch", trainer.steps_per_epoch), ("overfit_batches", trainer.overfit_batches)):
        if limit is not None and limit > steps:
            raise ConfigError(
                f"trainer.{key}={limit}: split {config.dataset.train} has only {steps} batches of {batch}; set "
                f"trainer.{key}={steps} or less"
            )
        steps = limit or steps
    return min(steps, trainer.limit_train_batches or steps)


def _check_batch(config: RunConfig, examples: int) -> None:
    """Rejects a batch that the split can't fill, or that would be padded by more than the mesh needs."""
    batch = config.dataset.batch_size
    multiple = _batch_axis_size(config) * config.trainer.accumulate_steps
    if config.dataset.remainder == "drop":
        largest = examples // multiple * multiple
    else:
        largest = _rounded_up(examples, multiple)
    if batch > largest:
        raise invalid(
            "dataset.batch_size",
            batch,
            problem=f"must be at most {largest}: split {config.dataset.train} has {examples} examples",
            fix=f"set dataset.batch_size={largest} or less" if largest else "set dataset.remainder=pad",
        )


def total_steps(config: RunConfig, examples: int) -> int:
    """Returns the steps of a whole run.

    Raises:
      ConfigError: see `epoch_steps`; also if the steps overflow int32, or the learning rate float32.
    """
    per_epoch = epoch_steps(config, examples)
    epochs = config.trainer.epochs
    total = epochs * per_epoch
    if total > _MAX_STEPS:
        largest = _MAX_STEPS // per_epoch
        raise invalid(
            "trainer.epochs",
            epochs,
            problem=f"must be at most {largest} with {per_epoch} steps per epoch: steps are counted in int32",
            fix=f"set trainer.epochs={largest} or less",
        )
    checks_optimizer.check_rates(config.optimizer, total)
    return total


def eval_examples(config: RunConfig, examples: int) -> int:
    """Returns the examples per batch of an evaluation, the same on every mesh.

    A loss or metric that reads other rows of its batch depends on which examples are together in one.

    Args:
      config: checked.
      examples: of the split.
    """
    size = config.dataset.eval_batch_size or max(config.dataset.batch_size, _EVAL_BATCH)
    return min(size, examples)


def eval_batch_size(config: RunConfig, examples: int) -> int:
    """Returns the rows of an evaluation's batch: its examples, padded to a multiple of the batch axis.

    Args:
      config: checked.
      examples: of the split.
    """
    return _rounded_up(eval_examples(config, examples), _batch_axis_size(config))


def check_memory(config: RunConfig, source: DataSource) -> None:
    """Checks the memory of the examples that are on their way to the devices at once.

    Args:
      config: checked.
      source: training examples.

    Raises:
      ConfigError: the examples need more than 4 GiB.
    """
    epoch = epoch_steps(config, source.size)
    largest = _max_steps(config, source)
    per_call = min(config.trainer.steps_per_call or 1, epoch)
    prefetch = config.dataset.prefetch
    if per_call > largest:
        _raise_too_large("trainer.steps_per_call", config.trainer.steps_per_call, largest)
    if min(per_call * prefetch, epoch) > largest:
        _raise_too_large("dataset.prefetch", prefetch, max(1, largest // per_call))


def check_verified(config: RunConfig, source: DataSource) -> None:
    """Checks that the batches of `verify.steps` fit in memory.

    Raises:
      ConfigError: their examples need more than 4 GiB.
    """
    largest = _max_steps(config, source)
    if config.verify.steps > largest:
        raise invalid(
            "verify.steps",
            config.verify.steps,
            problem=f"must be at most {largest}: the examples of more steps would need over 4 GiB",
            # More than 20 steps are accepted, but slow, so they are not suggested.
            fix=f"set verify.steps={min(largest, 20)}",
        )


def _raise_too_large(key: str, value: object, largest: int) -> None:
    raise invalid(
        key,
        value,
        problem=f"must be at most {largest}: the examples of more steps would need over 4 GiB",
        fix=f"set {key}={largest}",
    )


def bytes_per_step(config: RunConfig, arrays: Mapping[str, ArraySpec]) -> int:
    """Returns the bytes of a global batch of arrays."""
    return config.dataset.batch_size * sum(spec.bytes for spec in arrays.values())


def _max_steps(config: RunConfig, source: DataSource) -> int:
    """Returns how many steps' examples fit in the memory limit, at least one."""
    return max(1, _MAX_BYTES // max(bytes_per_step(config, source.specs), 1))


def _batch_axis_size(config: RunConfig) -> int:
    axis = batch_axis(config.layout, config.mesh.axes)
    return config.mesh.axes[axis] if axis else 1


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
