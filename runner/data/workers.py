"""Who makes the examples of a batch: threads, Grain's worker processes, or nobody where arrays lie in memory.

The order of examples is the caller's: workers are handed rows, and what they make stands where its row stood. So how
many there are, and of which kind, changes no bit.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.augment import Augmented, make, sources
from runner.data.base import Array, ArraySpec, DataSource, ExampleSource, Rows, empty
from runner.errors import DataError, invalid
from runner.host import cores

logger = logging.getLogger(__name__)

_CHUNK = 16  # examples that a worker makes at a time: few enough to share a batch out, enough to hide the handing
_SLOW_S = 0.005  # of Python code an example: what takes less is made faster than processes start and hand over
_TRIED = 3  # examples that are timed


# What makes a few examples, in this process or in another one, as `runner.data.augment.make` does.
Chunks = Callable[[Augmented, int, Rows, Mapping[str, Array]], None]


class Processes(Protocol):
    """Worker processes, as `runner.data.processes` starts them."""

    def __call__(self, source: Augmented, epoch: int, rows: Rows, made: Mapping[str, Array], /) -> None:
        """See `Chunks`."""
        ...

    def can_take(self, source: Augmented) -> str:
        """Returns why a source can't be handed to another process; empty where it can."""
        ...

    def close(self) -> None:
        """Ends them."""
        ...


class Reading:
    """Examples that are being made.

    Example:
      >>> Reading({"x": np.ones(2)}, []).result()
      {'x': array([1., 1.])}
    """

    def __init__(self, arrays: dict[str, Array], pending: list[Future[None]]) -> None:
        self._arrays = arrays
        self._pending = pending

    def result(self) -> dict[str, Array]:
        """Waits for them.

        Raises:
          DataError: one can't be made, or its worker died; names the file.
        """
        try:
            for future in self._pending:
                future.result()
        except BaseException:
            for future in self._pending:
                future.cancel()
            raise
        return self._arrays


class Reader:
    """Reads one source. Its arrays are as `specs` say, behind augmentation.

    Attributes:
      source: what is read.
      in_background: whether workers do it, so that it is of use to begin ahead.
    """

    def __init__(self, source: DataSource, submit: Callable[[Callable[[], None]], Future[None]], make: Chunks | None):
        self.source = source
        self.in_background = make is not None
        self._submit = submit
        self._make = make

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of the arrays."""
        return self.source.specs

    def read(self, epoch: int, rows: Rows) -> dict[str, Array]:
        """Reads examples; see `begin`."""
        return self.begin(epoch, rows).result()

    def begin(self, epoch: int, rows: Rows) -> Reading:
        """Begins to read examples.

        Args:
          epoch: whose draws of augmentation are taken.
          rows: int64 of any shape S, rows of the source.

        Returns:
          What gives the arrays, each (*S, *shape).
        """
        flat = rows.ravel()
        if self._make is None:
            arrays = self.source.read(flat)
            return Reading({name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in arrays.items()}, [])
        whole = empty(self.specs, len(flat))
        pending = [self._submit(self._chunk(epoch, flat, whole, at)) for at in range(0, len(flat), _CHUNK)]
        return Reading({name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in whole.items()}, pending)

    def _chunk(self, epoch: int, rows: Rows, whole: Mapping[str, Array], at: int) -> Callable[[], None]:
        place = slice(at, at + _CHUNK)
        make = self._make
        source = self.source
        assert make is not None
        assert isinstance(source, Augmented)
        return lambda: make(source, epoch, rows[place], {name: array[place] for name, array in whole.items()})


class Workers:
    """The threads and processes of a run, started when they are first needed; its block ends them."""

    def __init__(self, config: DatasetConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._count = cores.available() if config.workers is None else config.workers
        self._threads: ThreadPoolExecutor | None = None
        self._processes: Processes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends them; what is being made is given up."""
        threads = self._threads
        self._threads = None
        processes = self._processes
        self._processes = None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        if processes is not None:
            processes.close()
        if threads is not None:
            threads.shutdown(wait=True)

    def reader(self, source: DataSource) -> Reader:
        """Returns what reads a source.

        Raises:
          ConfigError: worker processes were asked for, and the source can't be handed to them.
        """
        if not one_at_a_time(source):
            return Reader(source, self._submit, None)
        examples = source if isinstance(source, Augmented) else Augmented(source, (), self._seed, False, source.specs)
        return Reader(examples, self._submit, self._maker(examples))

    def _maker(self, source: Augmented) -> Chunks:
        kind = self._config.worker_kind
        if kind == "thread" or not self._count or (kind == "auto" and not _wants_process(source)):
            return make
        if self._processes is None:
            started: Processes = importlib.import_module("runner.data.processes").Processes(self._count, self._seed)
            self._processes = started
        why = self._processes.can_take(source)
        if not why:
            return self._processes
        if kind == "process":
            fix = "define it in a module, or set dataset.worker_kind=thread"
            raise invalid(
                "dataset.worker_kind", kind, problem=f"the dataset can't be sent to a process ({why})", fix=fix
            )
        logger.warning("examples are made by threads: the dataset can't be sent to a process (%s)", why)
        return make

    def _submit(self, job: Callable[[], None]) -> Future[None]:
        if not self._count:
            done: Future[None] = Future()
            try:
                job()
                done.set_result(None)
            except DataError as error:
                done.set_exception(error)
            return done
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="examples")
        return self._threads.submit(job)


def opened(config: DatasetConfig, seed: int) -> Workers:
    """Returns the workers of a run, for a `with` block; none is started yet."""
    return Workers(config, seed)


def one_at_a_time(source: DataSource) -> bool:
    """Tells whether a source's examples are made one by one, so that workers can share them."""
    return isinstance(source, Augmented) or any(isinstance(part, ExampleSource) for part in sources(source))


def _wants_process(source: Augmented) -> bool:
    """Tells whether processes pay: Python code that holds the interpreter's lock, and is not done in no time."""
    if not source.holds_gil or importlib.util.find_spec("grain") is None:
        return False
    # what waits for a disk lets go of the lock
    tried = min(_TRIED, source.size)
    began = time.thread_time()
    make(source, 0, np.arange(tried), empty(source.specs, tried))
    return (time.thread_time() - began) / max(tried, 1) > _SLOW_S
