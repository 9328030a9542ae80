"""Batches for the loop: how many a device call takes, gathered and placed ahead of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from runner.config.schema import RunConfig
from runner.data import Dataset, Split
from runner.data.pipeline import Plan, eval_plan, gather, train_plan
from runner.data.prefetch import Prefetcher
from runner.engine.base import Array, HostBatches, PlacedBatches
from runner.training import lengths

HostBatchIterator = Iterator[HostBatches]
Batches = Prefetcher[HostBatches, PlacedBatches]

_SECONDS_A_CALL = 0.25  # short enough that a signal and the progress bar don't wait, long enough to hide the call
_MOST_STEPS = 64
_MOST_HELD_STEPS = 512  # of images that the devices hold: a call brings their places alone
_MOST_BYTES = 32 << 20  # of images in one call


class CallSize:
    """Chooses how many steps a device call takes, by the time that the calls before took.

    Attributes:
      capacity: the most that a call can take; the arrays of every call have this length.
    """

    def __init__(self, fixed: int | None, bytes_a_step: int, most: int = _MOST_STEPS) -> None:
        self._fixed = fixed
        self.capacity = fixed or max(1, min(most, _MOST_BYTES // max(bytes_a_step, 1)))
        self._steps, self._seen = fixed or 1, 0

    @property
    def steps(self) -> int:
        """Steps of the next call."""
        return self._steps

    def observe(self, seconds_a_step: float) -> None:
        """Takes the time of a finished call; the first one compiled, and says nothing."""
        self._seen += 1
        if self._fixed is None and self._seen > 1 and seconds_a_step > 0:
            wanted = int(_SECONDS_A_CALL / seconds_a_step)
            self._steps = min(max(wanted, 1), self.capacity, 4 * self._steps)


def call_size(config: RunConfig, split: Split, held: bool) -> CallSize:
    """Returns how many steps a device call of a run takes, at first.

    Args:
      config: checked.
      split: training examples.
      held: the devices hold the split's images.
    """
    batch_size, epoch = config.dataset.batch_size, lengths.epoch_steps(config, split.size)
    fixed = None if config.trainer.steps_per_call is None else min(config.trainer.steps_per_call, epoch)
    if held:
        return CallSize(fixed, split.labels[:1].nbytes * batch_size, _MOST_HELD_STEPS)
    return CallSize(fixed, split.images[:1].nbytes * batch_size)


def training(
    config: RunConfig,
    split: Split,
    epoch: int,
    steps: int,
    calls: CallSize,
    place: Callable[[HostBatches], PlacedBatches],
    done: int = 0,
    most: Callable[[int], int | None] = lambda _: None,
    held: bool = False,
) -> Batches:
    """Returns the placed batches of one epoch, made ready on another thread.

    Args:
      config: seed, batch size, order and what becomes of the last partial batch.
      split: training examples.
      epoch: from 0; the order is a function of seed and epoch alone, so that a resumed run sees the same.
      steps: steps of this epoch.
      calls: how many steps each call takes.
      place: puts batches on the devices.
      done: steps of this epoch that a resumed run has behind it.
      most: steps of the epoch done -> the most that the next call may take; None: as many as it likes.
      held: the devices hold the split's images, so batches say only where in it they are.
    """

    def size(taken: int) -> int:
        return min(calls.steps, most(done + taken) or calls.steps)

    def stacks() -> HostBatchIterator:  # the order is drawn on the other thread too
        plan = epoch_plan(config, split.size, epoch, steps, done)
        yield from _stacks(split, plan, size, calls.capacity, held)

    return Prefetcher(stacks(), place, config.dataset.prefetch)


def epoch_plan(config: RunConfig, size: int, epoch: int, steps: int, start_step: int = 0) -> Plan:
    """Returns the batches of an epoch, from `start_step` on; with `trainer.overfit_batches` always the first epoch's.

    Args:
      config: seed, batch size, order and what becomes of the last partial batch.
      size: training examples.
      epoch: from 0.
      steps: of this epoch.
      start_step: steps of it that were done already.
    """
    return train_plan(
        size,
        batch_size=config.dataset.batch_size,
        seed=config.trainer.seed,
        epoch=epoch if config.trainer.overfit_batches is None else 0,
        start_step=start_step,
        shuffle=config.dataset.shuffle,
        remainder=config.dataset.remainder,
        steps=steps,
    )


def evaluated_split(config: RunConfig, data: Dataset) -> Split:
    """Returns what a run is evaluated on: the eval split, or the examples of `trainer.overfit_batches`."""
    if config.trainer.overfit_batches is None:
        return data.eval
    plan = epoch_plan(config, data.train.size, 0, config.trainer.overfit_batches)
    return Split(*gather(data.train, plan.indices[plan.weights > 0]))


def evaluation(split: Split, batch_size: int, limit: int | None) -> HostBatchIterator:
    """Yields every example of a split in order, one batch at a time; the last is padded with weight 0."""
    return _stacks(split, eval_plan(split.size, batch_size, limit), lambda _: 1, 1, held=False)


def _stacks(split: Split, plan: Plan, size: Callable[[int], int], capacity: int, held: bool) -> HostBatchIterator:
    """Yields a plan's batches, `size(taken)` at a time, in arrays whose first dim is always `capacity`."""
    done = 0
    while done < plan.steps:
        steps = min(size(done), plan.steps - done)
        places = plan.indices[done : done + steps]
        images, labels = (places.astype(np.int32), split.labels[places]) if held else gather(split, places)
        weights = plan.weights[done : done + steps]
        yield HostBatches(_padded(images, capacity), _padded(labels, capacity), _padded(weights, capacity), steps)
        done += steps


def _padded(array: Array, length: int) -> Array:
    if len(array) == length:
        return array
    whole = np.zeros((length, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole
