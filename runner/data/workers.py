"""Workers that make the examples of a batch: threads or processes. Arrays in memory need none.

The caller decides the order of the examples: a worker gets rows and writes each example to its row's position. So the
number and kind of workers change no bit.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Self

import cloudpickle

from runner.config.schema_data import DatasetConfig
from runner.data.augment import Augmented
from runner.data.base import Array, ArraySpec, DataSource, Rows, empty_arrays, take
from runner.errors import ConfigError, DataError, describe, invalid
from runner.host import cores, imports

# Examples per task of a worker. Fewer cost more for handing tasks over; more would share a batch unevenly.
_CHUNK = 16


class Reading:
    """A read in progress."""

    def __init__(self, arrays: dict[str, Array], pending: list[Future[None]]) -> None:
        self._arrays = arrays
        self._pending = pending

    def result(self) -> dict[str, Array]:
        """Waits for the examples and returns their arrays.

        Raises:
          DataError: an example can't be made, or its worker died; the message names it.
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
    """Reads one source, after augmentation; workers make its examples if `in_background`."""

    def __init__(self, source: DataSource, workers: Workers) -> None:
        self.source = source
        self.in_background = source.one_at_a_time
        self._workers = workers

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of the arrays."""
        return self.source.specs

    def read(self, epoch: int, rows: Rows) -> dict[str, Array]:
        """Reads examples; see `begin`."""
        return self.begin(epoch, rows).result()

    def begin(self, epoch: int, rows: Rows) -> Reading:
        """Starts to read rows of any shape S, as arrays (*S, *shape); the epoch selects the random augmentation."""
        flat_rows = rows.ravel()
        pending: list[Future[None]] = []
        if not self.in_background:
            flat = self.source.read(flat_rows)
        else:
            assert isinstance(self.source, Augmented), "`Workers.reader` has made it one"
            flat = empty_arrays(self.specs, len(flat_rows))
            for start in range(0, len(flat_rows), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                pending.append(self._workers.submit(self.source, epoch, flat_rows[chunk], take(flat, chunk)))
        # Reshaping gives views, so the workers' writes to `flat` appear in `arrays`.
        arrays = {name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in flat.items()}
        return Reading(arrays, pending)


class Workers:
    """The threads and processes of a run, started on first use and ended with the `with` block."""

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
        """Ends the workers; examples in progress are abandoned."""
        threads = self._threads
        self._threads = None
        processes = self._processes
        self._processes = None
        # A thread may wait for a process. So no new tasks start, then the processes end, and only then do the threads.
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        if processes is not None:
            processes.close()
        if threads is not None:
            threads.shutdown(wait=True)

    def reader(self, source: DataSource) -> Reader:
        """Returns the reader of a source, which must be picklable for worker processes."""
        if source.one_at_a_time:
            if not isinstance(source, Augmented):
                source = Augmented(source, (), self._seed, False, source.specs)
            if self._config.worker_kind == "process" and self._count:
                if self._processes is None:
                    self._processes = Processes(self._count, self._seed)
                self._processes.check(source)
        return Reader(source, self)

    def submit(self, source: Augmented, epoch: int, rows: Rows, arrays: Mapping[str, Array]) -> Future[None]:
        """Starts to write examples into arrays (len(rows), *shape)."""
        write = _write_examples if self._processes is None else self._processes.make
        if not self._count:
            # Without workers the task runs here, in the thread that prefetches.
            done: Future[None] = Future()
            try:
                write(source, epoch, rows, arrays)
                done.set_result(None)
            except DataError as error:
                done.set_exception(error)
            return done
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="examples")
        return self._threads.submit(write, source, epoch, rows, arrays)


def opened(config: DatasetConfig, seed: int) -> Workers:
    """Returns the workers of a run, for a `with` block; none is started yet."""
    return Workers(config, seed)


def _write_examples(source: Augmented, epoch: int, rows: Rows, arrays: Mapping[str, Array]) -> None:
    for index, row in enumerate(rows):
        try:
            example = source.example(int(row), epoch)
        except (ConfigError, DataError):
            raise
        # The user's code may raise errors of any type.
        except Exception as error:
            raise DataError(f"{source.example_name(int(row))} can't be made ({describe(error)})") from error
        for name, values in example.items():
            arrays[name][index] = values


class Processes:
    """A pool of worker processes, started on first use. A process makes a few examples at a time."""

    def __init__(self, count: int, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        # The workers end when this process closes its end of the pipe, also in the middle of an example.
        pipe_end, self._alive = context.Pipe(duplex=False)
        # A worker that needs a source reads it here, once. The folder is this user's only.
        self._folder = tempfile.TemporaryDirectory(prefix="runner-data-")
        self._pool = ProcessPoolExecutor(count, context, _start_worker, (seed, pipe_end, self._folder.name))
        self._written: list[tuple[Augmented, Path]] = []
        self._lock = threading.Lock()

    def check(self, source: Augmented) -> None:
        """Checks that a source can be sent to another process."""
        try:
            self._file(source)
        # The pickling of a user's object may raise errors of any type.
        except Exception as error:
            raise invalid(
                "dataset.worker_kind",
                "process",
                problem=f"the dataset can't be sent to a process ({describe(error)})",
                fix="define it in a module, or set dataset.worker_kind=thread",
            ) from error

    def make(self, source: Augmented, epoch: int, rows: Rows, arrays: Mapping[str, Array]) -> None:
        """Makes examples in a free worker and writes them into arrays."""
        try:
            made = self._pool.submit(_examples, self._file(source), epoch, rows).result()
        # A pool that is broken, or closed in the meantime.
        except (RuntimeError, CancelledError) as error:
            # Shuffled rows have no range.
            first = source.example_name(int(rows[0]))
            examples_made = first if len(rows) == 1 else f"{len(rows):,} examples, the first of them {first}"
            raise DataError(
                f"a data worker died while making {examples_made}; if it ran out of memory, lower dataset.workers"
            ) from error
        if isinstance(made, str):
            raise DataError(made)
        for name, values in made.items():
            arrays[name][...] = values

    def close(self) -> None:
        """Ends the processes, also those that are busy."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._alive.close()
        self._pool.shutdown(wait=True)
        self._folder.cleanup()

    def _file(self, source: Augmented) -> Path:
        """Returns the file of a source, which is written on first use."""
        with self._lock:
            for known, path in self._written:
                if known is source:
                    return path
            path = Path(self._folder.name, str(len(self._written)))
            path.write_bytes(cloudpickle.dumps(source))
            self._written.append((source, path))
            return path


def _start_worker(seed: int, pipe_end: Connection, folder: str) -> None:
    # Hides accelerators from user code in a worker: their memory belongs to the run.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    imports.watch(seed)
    # Ctrl-C reaches every process of the terminal's group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(pipe_end, folder), daemon=True).start()


def _end_with_parent(pipe_end: Connection, folder: str) -> None:
    # Nothing is ever sent: the pipe is ready when its other end is closed, by `close` or by the parent's death.
    wait([pipe_end])
    # A parent that was killed can't.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _examples(file: Path, epoch: int, rows: Rows) -> dict[str, Array] | str:
    """Returns the arrays of examples, or the text of an error, because a user's exception may not be picklable."""
    try:
        source = _source(file)
        arrays = empty_arrays(source.specs, len(rows))
        _write_examples(source, epoch, rows, arrays)
    except Exception as error:
        return " ".join(str(error).split()) if isinstance(error, DataError) else describe(error)
    return arrays


@functools.cache
def _source(file: Path) -> Augmented:
    source: Augmented = cloudpickle.loads(file.read_bytes())
    return source
