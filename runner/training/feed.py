"""Batches for the loop: how many a device call takes, read and placed ahead of the steps.

Shapes: K steps a device call, B examples a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from runner.config.schema import RunConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySource, ArraySpec, Dataset, DataSource, Rows
from runner.data.prefetch import Prefetcher
from runner.data.sampler import Plan, eval_plan, train_plan
from runner.data.workers import Reader, Reading, Workers
from runner.engine.base import HostBatches, PlacedBatches
from runner.layout import mesh
from runner.layout.axes import batch_axis
from runner.processes.team import current
from runner.task.base import Task
from runner.training import lengths

Batches = Prefetcher[HostBatches, PlacedBatches]
T = TypeVar("T")

_SECONDS_A_CALL = 0.25  # short enough that a signal and the progress bar don't wait, long enough to hide the call
_MOST_STEPS = 64
_MOST_CACHED_STEPS = 512  # of examples that the devices keep: a call brings their rows alone
_MOST_BYTES = 32 << 20  # of arrays in one call
_ROW_SPEC = ArraySpec((), "int32")


class StepsPerCall:
    """Chooses how many steps a device call takes, by the time that the calls before took.

    Attributes:
      capacity: the most that a call can take; the arrays of every call have this length.
      steps: of the next call.
    """

    def __init__(self, fixed: int | None, bytes_a_step: int, most: int = _MOST_STEPS) -> None:
        self._fixed = fixed
        self.capacity = fixed or max(1, min(most, _MOST_BYTES // max(bytes_a_step, 1)))
        self.steps = fixed or 1
        self._seen = 0

    def observe(self, seconds_a_step: float) -> None:
        """Takes the time of a finished call; the first one compiled, and says nothing."""
        self._seen += 1
        if self._fixed is None and self._seen > 1 and seconds_a_step > 0:
            wanted = int(_SECONDS_A_CALL / seconds_a_step)
            self.steps = min(max(wanted, 1), self.capacity, 4 * self.steps)


def steps_per_call(
    config: RunConfig, arrays: Mapping[str, ArraySpec], examples: int, *, cached: bool = False
) -> StepsPerCall:
    """Returns how many steps a device call of a run takes, at first.

    Args:
      config: checked.
      arrays: specs of a batch's arrays.
      examples: of the training split.
      cached: the devices keep the split, so that batches bring rows alone.
    """
    epoch = lengths.epoch_steps(config, examples)
    fixed = None if config.trainer.steps_per_call is None else min(config.trainer.steps_per_call, epoch)
    brought = {ROW: _ROW_SPEC} if cached else arrays
    most = _MOST_CACHED_STEPS if cached else _MOST_STEPS
    return StepsPerCall(fixed, lengths.bytes_a_step(config, brought), most)


Share = Callable[[int], Array]  # size of a batch -> the numbers of its rows that are needed


@dataclass(frozen=True)
class Examples:
    """A split as batches are made of it.

    Attributes:
      source: its examples.
      task: says which arrays a batch has, and what each example counts for.
      reader: of the source.
      cached: the devices keep the split; its batches say by `row` where in it their examples are.
      share: which rows of a batch this process's devices need; None: all.
    """

    source: DataSource
    task: Task
    reader: Reader
    cached: bool = False
    share: Share | None = None

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.source.size

    def read(self, epoch: int, indices: Rows, weight: Array) -> HostBatches:
        """Returns batches of given examples.

        Args:
          epoch: from 0, which augmentation depends on.
          indices: int64 (K, B), rows of the source; those of padding name some example too.
          weight: float32 (K, B), 1 for an example, 0 for padding.
        """
        return self._finished(self._begun(epoch, indices), indices, weight, len(indices), f"read {epoch}")

    def chunks(
        self,
        plan: Plan,
        size: Callable[[int], int],
        capacity: int,
        epoch: int = 0,
        name: str = "",
        given_up: Callable[[], bool] | None = None,
    ) -> Iterator[HostBatches]:
        """Yields a plan's batches, several a device call.

        Args:
          plan: of the source.
          size: steps of the plan that are taken -> steps of the next call, at least 1.
          capacity: first dim of every call's arrays; what is behind its steps is not computed.
          epoch: from 0.
          name: of this use of the plan, by which processes speak of its batches.
          given_up: tells whether nobody takes them any more.
        """

        def begun() -> Iterator[tuple[Reading | None, Rows, Array]]:
            done = 0
            while done < plan.steps:
                steps = min(size(done), plan.steps - done)
                indices = plan.indices[done : done + steps]
                weight = plan.weights[done : done + steps]
                yield self._begun(epoch, indices), indices, weight
                done += steps

        made = _one_ahead(begun()) if self.reader.in_background else begun()
        for number, (reading, indices, weight) in enumerate(made):
            yield self._finished(reading, indices, weight, capacity, f"{name} {number}", given_up)

    def _begun(self, epoch: int, indices: Rows) -> Reading | None:
        """Begins to read what a batch has of examples; of rows alone, there is nothing to read."""
        if self.cached and not self.task.weighs_arrays:
            return None
        return self.reader.begin(epoch, indices if self.share is None else indices[:, self.share(indices.shape[1])])

    def _finished(
        self,
        reading: Reading | None,
        indices: Rows,
        weight: Array,
        capacity: int,
        name: str,
        given_up: Callable[[], bool] | None = None,
    ) -> HostBatches:
        read = {} if reading is None else reading.result()
        if self.share is not None and read:
            weights, read = self._shared(read, weight, self.share(indices.shape[1]), name, given_up)
        else:
            weights = self.task.weights({**read, WEIGHT: weight})
        arrays = {ROW: indices.astype(np.int32)} if self.cached else {name: read[name] for name in self.task.arrays}
        padded = {name: _padded(array, capacity) for name, array in {**arrays, WEIGHT: weight}.items()}
        return HostBatches(padded, _padded(weights, capacity), len(indices))

    def _shared(
        self,
        read: Mapping[str, Array],
        weight: Array,
        own: Array,
        name: str,
        given_up: Callable[[], bool] | None,
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the weights of all examples, and arrays of whole batches with the examples of this process alone."""
        if self.task.weighs_arrays:
            mine = self.task.weights({**read, WEIGHT: weight[:, own]})
            told = current().all_gather(f"weights {name}", [own.tolist(), mine.tolist()], given_up=given_up)
            weights = np.zeros(weight.shape, mine.dtype)
            for rows, values in told:
                weights[:, rows] = np.asarray(values, mine.dtype).reshape(len(weight), -1)
        else:
            weights = self.task.weights({WEIGHT: weight})
        whole = {key: np.zeros((*weight.shape, *array.shape[2:]), array.dtype) for key, array in read.items()}
        for key, array in read.items():
            whole[key][:, own] = array
        return weights, whole


def _one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yields items, each after the next one has been drawn."""
    held: list[T] = []
    for item in items:
        held.append(item)
        if len(held) > 1:
            yield held.pop(0)
    yield from held


def _padded(array: Array, length: int) -> Array:
    if len(array) == length:
        return array
    whole = np.zeros((length, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole


@dataclass(frozen=True)
class Splits:
    """The examples of a run, by what they are for.

    Attributes:
      train: what is trained on.
      selecting: what evaluations during training are on; they select the best checkpoint and end a run early.
      selecting_name: in a word, `test`, `validation` or `overfit`.
      test: what is evaluated once, at the end; None: what selects is the test split, or all that there is.
    """

    train: Examples
    selecting: Examples
    selecting_name: str
    test: Examples | None

    @property
    def reported(self) -> Examples:
        """What the run's report is of."""
        return self.selecting if self.test is None else self.test

    @property
    def reported_name(self) -> str:
        """The same, in a word."""
        return self.selecting_name if self.test is None else "test"


def splits(config: RunConfig, data: Dataset, task: Task, readers: Workers, *, cached: bool = False) -> Splits:
    """Returns what a run trains and is evaluated on; with `trainer.overfit_batches` the same examples.

    Args:
      config: checked.
      data: the config's.
      task: of its arrays.
      readers: read its splits.
      cached: the devices keep the training split.
    """

    def examples(source: DataSource, *, cached: bool = False, microbatches: int = 1) -> Examples:
        return Examples(source, task, readers.reader(source), cached, share_of(config, microbatches))

    train = examples(data.train, cached=cached, microbatches=config.trainer.accumulate_steps)
    if config.trainer.overfit_batches is not None:
        plan = epoch_plan(config, data.train.size, 0, config.trainer.overfit_batches)
        seen = readers.reader(data.train).begin(0, plan.indices[plan.weights > 0]).result()  # by every process
        return Splits(train, examples(ArraySource(seen, data.train.specs)), "overfit", None)
    test = None if data.validation is None else examples(data.test)
    return Splits(train, examples(data.selecting), data.selecting_name, test)


def training(
    config: RunConfig,
    train: Examples,
    epoch: int,
    steps: int,
    chosen: StepsPerCall,
    place: Callable[[HostBatches], PlacedBatches],
    done: int = 0,
    most: Callable[[int], int | None] = lambda _: None,
    number: int = 0,
) -> Batches:
    """Returns the placed batches of one epoch, made ready on another thread.

    Args:
      config: seed, batch size, order and what becomes of the last partial batch.
      train: training examples.
      epoch: from 0; the order is a function of seed and epoch alone, so that a resumed run sees the same.
      steps: steps of this epoch.
      chosen: how many steps each call takes.
      place: puts batches on the devices.
      done: steps of this epoch that a resumed run has behind it.
      most: steps of the epoch done -> the most that the next call may take; None: as many as it likes.
      number: of these batches in the run, by which its processes speak of them.
    """
    team = current()
    name = f"feed {number}"
    made = list[Batches]()

    def size(taken: int) -> int:  # by the time that process 0's calls took
        def chosen_now() -> int:
            return min(chosen.steps, most(done + taken) or chosen.steps)

        return team.broadcast(f"{name} steps {taken}", chosen_now, given_up=lambda: made[0].is_closed)

    def chunks() -> Iterator[HostBatches]:  # the order is drawn on the other thread too
        plan = epoch_plan(config, train.size, epoch, steps, done)
        yield from train.chunks(
            plan, size, chosen.capacity, drawn_epoch(config, epoch), name, lambda: made[0].is_closed
        )

    made.append(Prefetcher(chunks(), place, config.dataset.prefetch))
    return made[0]


def drawn_epoch(config: RunConfig, epoch: int) -> int:
    """Returns the epoch whose order and augmentation are drawn; with `trainer.overfit_batches` always the first."""
    return epoch if config.trainer.overfit_batches is None else 0


def epoch_plan(config: RunConfig, size: int, epoch: int, steps: int, start_step: int = 0) -> Plan:
    """Returns the batches of an epoch, from `start_step` on.

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
        epoch=drawn_epoch(config, epoch),
        start_step=start_step,
        shuffle=config.dataset.shuffle,
        remainder=config.dataset.remainder,
        steps=steps,
    )


_evaluations = itertools.count()


def evaluation(
    examples: Examples, batch_size: int, limit: int | None = None, rows: int | None = None
) -> Iterator[HostBatches]:
    """Yields every example of a split in order, one batch at a time; the last is padded with weight 0.

    Args:
      examples: of the split.
      batch_size: examples per batch.
      limit: stops after that many batches; null: none is left out.
      rows: of each batch, padding included; null: `batch_size`.
    """
    name = f"evaluation {next(_evaluations)}"
    return examples.chunks(eval_plan(examples.size, batch_size, limit, rows), lambda _: 1, 1, name=name)


def evaluation_of(config: RunConfig, examples: Examples, limit: int | None = None) -> Iterator[HostBatches]:
    """Yields a split's batches as a run evaluates them on its mesh.

    Args:
      config: checked.
      examples: of the split.
      limit: stops after that many batches; null: none is left out.
    """
    size = lengths.eval_examples(config, examples.size)
    return evaluation(examples, size, limit, lengths.eval_batch_size(config, examples.size))


def share_of(config: RunConfig, microbatches: int = 1) -> Share | None:
    """Returns which rows of a batch the devices of this process need; None where they need all.

    Args:
      config: checked.
      microbatches: parts that a batch is computed in, each of which is spread over the mesh.
    """
    team = current()
    axes = config.mesh.axes
    axis = batch_axis(config.layout, axes)
    if team.count == 1 or axis is None:
        return None
    columns = mesh.columns(axes, axis, team.index, team.count)
    if len(columns) == axes[axis]:
        return None

    def rows(size: int) -> Array:
        return np.arange(size).reshape(microbatches, axes[axis], -1)[:, columns].reshape(-1)

    return rows
