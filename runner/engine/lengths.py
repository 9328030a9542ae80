"""Steps, batch sizes and input memory of a config on its dataset, checked before an engine is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.config.schema import RunConfig, TaskConfig, TrainerConfig
from runner.config.schema_data import DatasetConfig
from runner.data.base import ArraySpec
from runner.data.sampler import steps_in_epoch
from runner.errors import ConfigError, invalid
from runner.layout.axes import axis_size, batch_axis
from runner.task import registry as task

# Engines count steps in int32.
_MAX_STEPS = 2**31 - 1

# Examples per batch of an evaluation, unless training batches are larger: fewer calls against more memory.
_EVAL_BATCH = 1000


@dataclass(frozen=True)
class RunLength:
    """The length of a run and of its parts, in steps.

    A run consists of periods, after which it may be evaluated. A period is an epoch or, with
    `trainer.evaluate_every_steps`, that many steps. Periods end at multiples of their length, counted from the run's
    start, and at its end. So where they end does not depend on where a run was interrupted.

    Attributes:
      epoch: steps of a pass over the training split. The order of the examples is a function of the seed and of the
        number of the pass, whatever the other lengths are.
      evaluate_every: periods between evaluations.
      by_epochs: length and periods are both set in epochs, so that the run is shown by epochs.
      key: key of `trainer` that sets the length: `epochs`, `steps` or `tokens`.
      tokens: tokens per step; 0: the task counts none.
    """

    total: int
    epoch: int
    period: int
    evaluate_every: int = 1
    by_epochs: bool = False
    key: str = "steps"
    value: int = 1
    tokens: int = 0

    def ends(self, step: int) -> Iterator[int]:
        """Yields the ends of the periods that are left after so many steps."""
        while step < self.total:
            step = min((step // self.period + 1) * self.period, self.total)
            yield step

    def is_end(self, step: int) -> bool:
        """Returns whether a period ends after so many steps, or the run has done more than its length."""
        is_multiple = step > 0 and step % self.period == 0
        return is_multiple or step >= self.total

    def start(self, end: int) -> int:
        """Returns the steps before the period that ends after `end` steps."""
        return (end - 1) // self.period * self.period

    def is_evaluated(self, end: int) -> bool:
        """Returns whether an evaluation follows the period that ends after `end` steps."""
        return end >= self.total or end % (self.evaluate_every * self.period) == 0

    def describe_period(self, end: int) -> str:
        """Returns the name of the period that ends after `end` steps.

        >>> RunLength(20, epoch=10, period=10, by_epochs=True).describe_period(20)
        'epoch 2/2'
        >>> RunLength(2500, epoch=10, period=1000).describe_period(2500)
        'steps 2,001 to 2,500 of 2,500'
        """
        start = self.start(end)
        if self.by_epochs:
            return f"epoch {start // self.epoch + 1}/{self.total // self.epoch}"
        return f"steps {start + 1:,} to {end:,} of {self.total:,}"

    def describe_position(self, step: int) -> str:
        """Returns how far a run has come that has done so many steps.

        >>> RunLength(20, epoch=10, period=10, by_epochs=True).describe_position(13)
        'step 13 of 20, epoch 2 of 2'
        """
        position = f"step {step:,} of {self.total:,}"
        if self.by_epochs:
            epochs = self.total // self.epoch
            position += f", epoch {min(step // self.epoch + 1, epochs)} of {epochs}"
        return position

    def describe_end(self, step: int) -> str:
        """Returns why a run ended that has done all its steps, or more if it was shortened."""
        if self.key == "epochs":
            return f"trained for {self.value} epochs"
        if self.key == "tokens":
            return f"trained for {step:,} steps ({step * self.tokens:,} tokens)"
        return f"trained for {step:,} steps"

    def fix_for_more(self, step: int) -> str:
        """Returns the fix for a run that is to train longer than so many steps."""
        longer = step + 1
        if self.key == "epochs":
            longer = step // self.epoch + 1
        elif self.key == "tokens":
            longer = (step + 1) * self.tokens
        return f"set trainer.{self.key}={longer} or more"


def run_length(config: RunConfig, examples: int, tokens: int) -> RunLength:
    """Returns the length of a run on so many examples, with so many tokens each; 0: the task counts none."""
    trainer = config.trainer
    if config.dataset.batch_size > examples:
        axes = config.mesh.axes
        multiple = axis_size(axes, batch_axis(config.layout, axes)) * trainer.accumulate_steps
        _check_batch(config.dataset, examples, multiple)
    epoch = epoch_steps(config.dataset, trainer, examples)
    tokens_per_step = tokens * config.dataset.batch_size
    if trainer.steps is not None:
        key = "steps"
        value = total = trainer.steps
    elif trainer.tokens is not None:
        key = "tokens"
        value = trainer.tokens
        total = _steps_of_tokens(config.task, value, tokens_per_step)
    else:
        key = "epochs"
        # The checks of the config allow null only with one of the other two keys.
        assert trainer.epochs is not None
        value = trainer.epochs
        total = value * epoch
        if total > _MAX_STEPS:
            _raise_too_long(key, value, _MAX_STEPS // epoch, f"{epoch} steps per epoch")
    return RunLength(
        total,
        epoch,
        period=trainer.evaluate_every_steps or epoch,
        evaluate_every=trainer.evaluate_every,
        by_epochs=key == "epochs" and trainer.evaluate_every_steps is None,
        key=key,
        value=value,
        tokens=tokens_per_step,
    )


def _steps_of_tokens(config: TaskConfig, tokens: int, per_step: int) -> int:
    if not per_step:
        problem = f"the examples of this dataset are not tokens to task={config.name}"
        raise invalid("trainer.tokens", tokens, problem=problem, fix="set trainer.steps or trainer.epochs")
    # A division that rounds up.
    steps = -(-tokens // per_step)
    if steps > _MAX_STEPS:
        _raise_too_long("tokens", tokens, _MAX_STEPS * per_step, f"{per_step:,} tokens per step")
    return steps


def _raise_too_long(key: str, value: int, largest: int, unit: str) -> None:
    problem = f"must be at most {largest} with {unit}: steps are counted in int32"
    raise invalid(f"trainer.{key}", value, problem=problem, fix=f"set trainer.{key}={largest} or less")


def epoch_steps(dataset: DatasetConfig, trainer: TrainerConfig, examples: int) -> int:
    """Returns the steps of one epoch; a ConfigError if the split has fewer batches than the config needs."""
    batch = dataset.batch_size
    steps = steps_in_epoch(examples, batch, dataset.remainder)
    for key, limit in (("steps_per_epoch", trainer.steps_per_epoch), ("overfit_batches", trainer.overfit_batches)):
        if limit is not None and limit > steps:
            raise ConfigError(
                f"trainer.{key}={limit}: split {dataset.train} has only {steps} batches of {batch}; set "
                f"trainer.{key}={steps} or less"
            )
        steps = limit or steps
    return min(steps, trainer.limit_train_batches or steps)


def without_padding(dataset: DatasetConfig, trainer: TrainerConfig, examples: int) -> DatasetConfig:
    """Returns the group with `remainder=drop` if no batch of training is padded: such batches need no check."""
    pads = dataset.remainder == "pad" and epoch_steps(dataset, trainer, examples) * dataset.batch_size > examples
    return dataset if pads else replace(dataset, remainder="drop")


def _check_batch(config: DatasetConfig, examples: int, multiple: int) -> None:
    # The split can't fill it, or it would be padded by more than the mesh needs.
    batch = config.batch_size
    if config.remainder == "drop":
        largest = examples // multiple * multiple
    else:
        largest = padded_rows(examples, multiple)
    key = "dataset.batch_size"
    split = f"split {config.train} has {examples} examples"
    if largest == 0:
        problem = f"{split}, fewer than the smallest batch of this mesh, {multiple}"
        raise invalid(key, batch, problem=problem, fix="set dataset.remainder=pad, or choose a smaller mesh")
    if batch > largest:
        raise invalid(key, batch, problem=f"must be at most {largest}: {split}", fix=f"set {key}={largest} or less")


def eval_batch(dataset: DatasetConfig, config: TaskConfig, examples: int, *, mixes_rows: bool = False) -> int:
    """Returns the examples per batch of an evaluation; see `Engine.mixes_rows`.

    They are the same on every mesh, because a loss may read other rows.
    """
    size = dataset.eval_batch_size or max(dataset.batch_size, _EVAL_BATCH)
    if dataset.eval_batch_size is None and (mixes_rows or task.compares_rows(config)):
        # A loss of more rows is another one, which could not be compared with that of training.
        size = dataset.batch_size
    return min(size, examples)


def padded_rows(batch: int, parts: int) -> int:
    """Returns the rows of a batch of an evaluation, padded to a multiple of the parts that the mesh splits it into."""
    return -(-batch // parts) * parts


def steps_per_call(dataset: DatasetConfig, trainer: TrainerConfig, examples: int) -> int | None:
    """Returns `trainer.steps_per_call`, at most the steps of an epoch or between evaluations; None: not set."""
    if trainer.steps_per_call is None:
        return None
    epoch = epoch_steps(dataset, trainer, examples)
    return min(trainer.steps_per_call, trainer.steps or epoch, trainer.evaluate_every_steps or epoch, epoch)


def bytes_per_step(config: DatasetConfig, arrays: Mapping[str, ArraySpec]) -> int:
    """Returns the bytes of a global batch of arrays."""
    return config.batch_size * sum(spec.bytes for spec in arrays.values())
