"""Batches for the loop: the number of steps per device call, and examples that are read and placed ahead of the steps.

Shapes: K steps per device call, B examples per batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from runner.cluster.team import current
from runner.config.schema import TaskConfig
from runner.config.schema_data import DatasetConfig
from runner.config.schema_trainer import TrainerConfig
from runner.data.base import ROW, WEIGHT, Array, ArraySource, ArraySpec, Dataset, DataSource, Rows
from runner.data.prefetch import Prefetcher
from runner.data.sampler import Plan, eval_plan, train_plan
from runner.data.workers import Reader, Reading, Workers
from runner.engine import lengths
from runner.engine.base import HostBatches, PlacedBatches
from runner.engine.common import Engine
from runner.errors import ConfigError
from runner.layout import mesh
from runner.layout.axes import axis_size
from runner.model import padding
from runner.task.base import Task
from runner.task.registry import compares_rows, key_of

Batches = Prefetcher[HostBatches, PlacedBatches]

# Size of a batch -> the indices of its rows that are needed.
Share = Callable[[int], Array]

T = TypeVar("T")

# The time that a device call should take. Signals, the progress bar and checkpoints wait for the end of a call, so it
# is short for a person; and it is long beside the host's own work per call, which it hides.
_SECONDS_PER_CALL = 0.25

# The most steps of a call. It bounds how far the input is made ready ahead (`dataset.prefetch` calls) and how late a
# metric is read. More steps would hide no more of the host's work, which 64 share already.
_MAX_STEPS = 64

# The most steps of a call if the devices keep the training split. The input of a call is then the row numbers of its
# examples, four bytes each, so it may have more steps.
_MAX_CACHED_STEPS = 512

# Bytes of the arrays of a call. `dataset.prefetch` calls exist at a time on the host and on the devices, so this
# bounds what large examples take of both.
_MAX_BYTES = 32 << 20

# How many times more steps than the call before a call may take. The time of a short call is mostly overhead, so the
# size grows in a few calls, each measured, and not at once by an estimate from the shortest.
_MAX_GROWTH = 4

_ROW_SPEC = ArraySpec((), "int32")

# Numbers the evaluations of this process, which names their batches among the processes.
_evaluations = itertools.count()


class StepsPerCall:
    """Chooses the number of steps per device call from the time that the calls before took.

    Attributes:
      capacity: the most that a call can take; the arrays of every call have this length, so that one program fits all.
      steps: of the next call.
    """

    def __init__(self, fixed: int | None, bytes_per_step: int, most: int = _MAX_STEPS) -> None:
        """Starts with one step per call, or a fixed number; `bytes_per_step` is the size of one batch's arrays."""
        self._fixed = fixed
        self.capacity = fixed or max(1, min(most, _MAX_BYTES // max(bytes_per_step, 1)))
        self.steps = fixed or 1
        self._calls = 0

    def observe(self, seconds_per_step: float) -> None:
        """Takes the time of a call that returned; the first one is ignored, because it compiled."""
        self._calls += 1
        if self._fixed is None and self._calls > 1 and seconds_per_step > 0:
            fitting = int(_SECONDS_PER_CALL / seconds_per_step)
            self.steps = min(max(fitting, 1), self.capacity, _MAX_GROWTH * self.steps)


def steps_per_call(
    dataset: DatasetConfig,
    trainer: TrainerConfig,
    arrays: Mapping[str, ArraySpec],
    examples: int,
    *,
    cached: bool = False,
) -> StepsPerCall:
    """Returns what chooses the steps per device call, for batches of these arrays or, if `cached`, of row numbers."""
    most = _MAX_STEPS
    if cached:
        most = _MAX_CACHED_STEPS
        arrays = {ROW: _ROW_SPEC}
    fixed = lengths.steps_per_call(dataset, trainer, examples)
    return StepsPerCall(fixed, lengths.bytes_per_step(dataset, arrays), most)


@dataclass(frozen=True)
class Examples:
    """A split, from which batches are made.

    Attributes:
      task: decides which arrays a batch has, and the weight of each example.
      cached: whether the devices keep the split; its batches have the rows of their examples in it as `row`.
      share: the rows of a batch that this process's devices need; None: all.
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
        """Returns the batches of given examples.

        Args:
          epoch: from 0; augmentation depends on it.
          indices: int64 (K, B), rows of the source; padding names some example too.
          weight: float32 (K, B), 1 for an example, 0 for padding.
        """
        reading = self._begin_reading(epoch, indices)
        return self._finish_reading(reading, indices, weight, len(indices), f"read {epoch}")

    def chunks(
        self,
        plan: Plan,
        size: Callable[[int], int],
        capacity: int,
        epoch: int = 0,
        name: str = "",
        given_up: Callable[[], bool] | None = None,
    ) -> Iterator[HostBatches]:
        """Yields a plan's batches, several per device call; what is after a call's steps is not computed.

        Args:
          size: steps of the plan that were taken -> steps of the next call, at least 1.
          capacity: first dim of every call's arrays.
          name: of this use of the plan, which names its batches among the processes.
          given_up: returns whether nobody takes the batches any more.
        """

        def begun() -> Iterator[tuple[Reading | None, Rows, Array]]:
            done = 0
            while done < plan.steps:
                steps = min(size(done), plan.steps - done)
                indices = plan.indices[done : done + steps]
                weight = plan.weights[done : done + steps]
                yield self._begin_reading(epoch, indices), indices, weight
                done += steps

        readings = begun()
        # Workers read the next call's examples while this one's are put together.
        if self.reader.in_background:
            readings = _one_ahead(readings)
        for number, (reading, indices, weight) in enumerate(readings):
            yield self._finish_reading(reading, indices, weight, capacity, f"{name} {number}", given_up)

    def _begin_reading(self, epoch: int, indices: Rows) -> Reading | None:
        """Begins to read the examples of batches; None if the batches need only their row numbers."""
        if self.cached and not self.task.weighs_arrays:
            return None
        if self.share is not None:
            indices = indices[:, self.share(indices.shape[1])]
        return self.reader.begin(epoch, indices)

    def _finish_reading(
        self,
        reading: Reading | None,
        indices: Rows,
        weight: Array,
        capacity: int,
        name: str,
        given_up: Callable[[], bool] | None = None,
    ) -> HostBatches:
        """Waits for the examples, and returns them as batches that are padded to the capacity of a call."""
        read: Mapping[str, Array] = {}
        if reading is not None:
            read = reading.result()
        if self.share is not None and read:
            own_rows = self.share(indices.shape[1])
            weights = self._shared_weights(read, weight, own_rows, name, given_up)
            read = _whole_batches(read, weight.shape, own_rows)
        else:
            weights = self.task.weights({**read, WEIGHT: weight})
        arrays: dict[str, Array] = {}
        if self.cached:
            arrays[ROW] = indices.astype(np.int32)
        else:
            for key in self.task.arrays:
                arrays[key] = read[key]
        arrays[WEIGHT] = weight
        padded = {key: _padded(array, capacity) for key, array in arrays.items()}
        return HostBatches(padded, _padded(weights, capacity), len(indices))

    def _shared_weights(
        self, read: Mapping[str, Array], weight: Array, own_rows: Array, name: str, given_up: Callable[[], bool] | None
    ) -> Array:
        """Returns the weights (K, B) of all examples, of which this process has read only its own."""
        if not self.task.weighs_arrays:
            return self.task.weights({WEIGHT: weight})
        own = self.task.weights({**read, WEIGHT: weight[:, own_rows]})
        # Every process needs the sum of all weights of a batch, which the loss is divided by.
        gathered = current().all_gather(f"weights {name}", [own_rows.tolist(), own.tolist()], given_up=given_up)
        weights = np.zeros(weight.shape, own.dtype)
        for rows, values in gathered:
            weights[:, rows] = np.asarray(values, own.dtype).reshape(len(weight), -1)
        return weights


def _whole_batches(read: Mapping[str, Array], shape: tuple[int, ...], own_rows: Array) -> dict[str, Array]:
    """Returns arrays (K, B, ...) of whole batches, with zeros in place of other processes' examples."""
    batches: dict[str, Array] = {}
    for key, array in read.items():
        batches[key] = np.zeros((*shape, *array.shape[2:]), array.dtype)
        batches[key][:, own_rows] = array
    return batches


def _one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yields items, each after the next one has been drawn."""
    drawn: list[T] = []
    for item in items:
        drawn.append(item)
        if len(drawn) > 1:
            yield drawn.pop(0)
    yield from drawn


def _padded(array: Array, length: int) -> Array:
    if len(array) == length:
        return array
    padded = np.zeros((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


@dataclass(frozen=True)
class Splits:
    """The examples of a run, by their purpose.

    Attributes:
      selecting: evaluated on during training; selects the best checkpoint and ends a run early.
      selecting_name: `test`, `validation` or `overfit`.
      test: evaluated once, at the end; None: what selects is the test split, or there is no other.
    """

    train: Examples
    selecting: Examples
    selecting_name: str
    test: Examples | None

    @property
    def reported(self) -> Examples:
        """The examples of the run's report."""
        return self.test or self.selecting

    @property
    def reported_name(self) -> str:
        """The name of the reported split."""
        if self.test is not None:
            return "test"
        return self.selecting_name


def splits(
    dataset: DatasetConfig, trainer: TrainerConfig, data: Dataset, task: Task, readers: Workers, engine: Engine
) -> Splits:
    """Returns what a run trains and is evaluated on; with `trainer.overfit_batches` the same examples."""

    def examples(source: DataSource) -> Examples:
        return Examples(source, task, readers.reader(source), share=share_of(engine))

    share = share_of(engine, trainer.accumulate_steps)
    train = Examples(data.train, task, readers.reader(data.train), engine.caches, share)
    if trainer.overfit_batches is not None:
        plan = epoch_plan(dataset, trainer, data.train, 0, trainer.overfit_batches)
        # Every process reads all of them: they are few, and an evaluation needs other rows than training.
        trained = readers.reader(data.train).begin(0, plan.indices[plan.weights > 0]).result()
        return Splits(train, examples(ArraySource(trained, data.train.specs)), "overfit", None)
    test = None if data.validation is None else examples(data.test)
    return Splits(train, examples(data.selecting), data.selecting_name, test)


def training(
    dataset: DatasetConfig,
    trainer: TrainerConfig,
    train: Examples,
    per_epoch: int,
    total: int,
    chosen: StepsPerCall,
    place: Callable[[HostBatches], PlacedBatches],
    start: int = 0,
    most: Callable[[int], int | None] = lambda _: None,
    number: int = 0,
) -> Batches:
    """Returns the placed batches of a run from a step on, made ready in another thread.

    They are made ready across the ends of epochs, and while the run is evaluated. A device call has steps of one epoch
    only.

    Args:
      chosen: how many steps each call takes.
      place: copies batches to the devices.
      start: steps of the run that were trained already.
      most: steps of the run that were taken -> the most that the next call may take; None: no limit.
      number: of these batches in the run, which names them among the processes.
    """
    team = current()
    name = f"feed {number}"
    # The prefetcher needs the generator, and the generator asks the prefetcher whether it is closed.
    prefetchers: list[Batches] = []

    def is_closed() -> bool:
        return prefetchers[0].is_closed

    def call_size(first: int, taken: int) -> int:
        step = first + taken
        # Times differ between processes, but all must take calls of the same size: process 0's times decide.
        key = f"{name} step {step}"
        return team.broadcast(key, lambda: min(chosen.steps, most(step) or chosen.steps), given_up=is_closed)

    def chunks() -> Iterator[HostBatches]:
        step = start
        while step < total:
            epoch = step // per_epoch
            first = epoch * per_epoch
            steps = min(per_epoch, total - first)
            # In here, so that the order of a large split is drawn in the other thread too.
            plan = epoch_plan(dataset, trainer, train.source, epoch, steps, step - first)
            size = partial(call_size, step)
            drawn = drawn_epoch(trainer, epoch)
            yield from train.chunks(plan, size, chosen.capacity, drawn, f"{name} epoch {epoch}", is_closed)
            step = first + steps

    prefetcher = Prefetcher(chunks(), place, dataset.prefetch)
    prefetchers.append(prefetcher)
    return prefetcher


def drawn_epoch(config: TrainerConfig, epoch: int) -> int:
    """Returns the epoch that order and augmentation are drawn for; with `trainer.overfit_batches` always the first."""
    if config.overfit_batches is not None:
        return 0
    return epoch


def epoch_plan(
    dataset: DatasetConfig, trainer: TrainerConfig, source: DataSource, epoch: int, steps: int, start_step: int = 0
) -> Plan:
    """Returns the batches of an epoch of `steps`, from `start_step` on.

    They are a function of the seed and the epoch's number alone, so that a resumed run sees the same.
    """
    return train_plan(
        source.size,
        batch_size=dataset.batch_size,
        seed=trainer.seed,
        epoch=drawn_epoch(trainer, epoch),
        start_step=start_step,
        shuffle=dataset.shuffle,
        remainder=dataset.remainder,
        steps=steps,
        source=source,
    )


def evaluation(
    examples: Examples, batch_size: int, limit: int | None = None, rows: int | None = None
) -> Iterator[HostBatches]:
    """Yields every example of a split in order, one batch at a time; the last is padded with weight 0.

    It stops after `limit` batches; `rows` is the size of each with its padding, by default `batch_size`.
    """
    name = f"evaluation {next(_evaluations)}"
    plan = eval_plan(examples.size, batch_size, limit, rows)
    return examples.chunks(plan, lambda _: 1, 1, name=name)


def evaluation_of(
    dataset: DatasetConfig, task: TaskConfig, engine: Engine, examples: Examples, limit: int | None = None
) -> Iterator[HostBatches]:
    """Returns a split's batches as a run evaluates them on its mesh; the engine tries the first one."""

    def batches(examples: Examples, *, mixes_rows: bool) -> Iterator[HostBatches]:
        size = lengths.eval_batch(dataset, task, examples.size, mixes_rows=mixes_rows)
        return evaluation(examples, size, limit, lengths.padded_rows(size, axis_size(engine.axes, engine.batch_axis)))

    if examples.task.reads_batch:
        # Padding is cut off, and each device may compute what is left.
        examples = replace(examples, share=None)
    all_batches = batches(examples, mixes_rows=False)
    first = list(itertools.islice(all_batches, 1))
    if first and engine.mixes_rows(first[0]):
        # Batches of training's size, as in Keras; with all rows in every process, whose devices may compute all.
        return batches(replace(examples, share=None), mixes_rows=True)
    return itertools.chain(first, all_batches)


def check_rows(
    dataset: DatasetConfig, trainer: TrainerConfig, task: TaskConfig, engine: Engine, train: Examples
) -> list[str]:
    """Checks a user's loss, and the last batch of an epoch if it is padded; changes no state.

    The config does not tell which rows a function reads, so it is called on a batch of the run's own examples, with
    the run's own model on its mesh. Returns a warning if the loss of an example reads other rows, as it does if arrays
    are broadcast by mistake.

    Raises:
      ConfigError: padding would count in the loss or in a metric of other examples; or the loss reads rows that
        gradient accumulation puts into other microbatches.
    """
    if not train.task.reads_batch:
        return []
    size = dataset.batch_size
    missing = lengths.epoch_steps(dataset, trainer, train.size) * size - train.size
    if dataset.remainder == "pad" and missing > 0:
        for batch in _tried(train, size, np.arange(size) < size - missing):
            padding.check_functions(*engine.with_and_without_others(batch, size - missing))
    kept = size // 2
    # A task whose purpose is to compare rows needs no warning.
    if not kept or not train.task.runs_user_code or compares_rows(task):
        return []
    for batch in _tried(train, size, np.ones(size, bool)):
        if padding.reads_others(*engine.with_and_without_others(batch, kept)):
            problem = "the loss of an example depends on other rows of its batch"
            fix = f"if you did not intend it, {padding.BROADCAST}; if you did, set task.whole_batch=true"
            steps = trainer.accumulate_steps
            if steps > 1:
                problem += ", which may be in other microbatches"
                raise ConfigError(f"trainer.accumulate_steps={steps}: {problem}; {fix}")
            return [f"{key_of(task)}: {problem}; {fix}"]
    return []


def _tried(train: Examples, size: int, is_real: Array) -> Iterator[HostBatches]:
    """Yields a batch with the sampler's padding, one example repeated, and with a mixed one.

    Both are needed: a function that reads, for example, the largest value of a batch may not change for one padding.
    Without padding, they are a batch and the same in reverse order.
    """
    # A split that is smaller than a batch repeats its examples.
    examples = np.arange(size, dtype=np.int64) % train.size
    # With the arrays themselves, even if the devices keep the split and get row numbers from the feed, and with all
    # rows in every process, whose devices may compute all.
    streamed = replace(train, cached=False, share=None)
    # A whole batch has nothing to fill.
    orders = (examples, np.flip(examples))
    if not is_real.all():
        orders = (np.where(is_real, examples, 0), np.where(is_real, examples, np.flip(examples)))
    for indices in orders:
        yield streamed.read(0, indices[None], is_real[None].astype(np.float32))


def share_of(engine: Engine, microbatches: int = 1) -> Share | None:
    """Returns the rows of a batch that the devices of this process need; None if they need all.

    `microbatches` are the parts that a batch is computed in, each of which is split over the mesh.
    """
    team = current()
    axis = engine.batch_axis
    if team.count == 1 or axis is None:
        return None
    columns = mesh.columns(engine.axes, axis, team.index, team.count)
    parts = axis_size(engine.axes, axis)
    if len(columns) == parts:
        return None

    def rows(size: int) -> Array:
        grid = np.arange(size).reshape(microbatches, parts, -1)
        return grid[:, columns].reshape(-1)

    return rows
