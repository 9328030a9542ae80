"""Workers: threads that make the examples of a batch. Arrays in memory need none.

The caller decides the order of the examples: a worker gets rows and writes each example to its row's position. So the
number of workers changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Self

from runner.config.import_path import raised
from runner.config.schema_data import DatasetConfig
from runner.data.base import Array, ArraySpec, DataSource, Rows, empty_arrays, take
from runner.errors import ConfigError, DataError
from runner.host import cores

# Examples per task of a worker. Fewer cost more for handing tasks over; more would share a batch unevenly.
_CHUNK = 16


class Reading:
    """A read in progress."""

    def __init__(self, arrays: dict[str, Array], pending: list[Future[None]]) -> None:
        self._arrays = arrays
        self._pending = pending

    def result(self) -> dict[str, Array]:
        """Waits for the examples and returns their arrays; a DataError that names an example that can't be made."""
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
            flat = empty_arrays(self.specs, len(flat_rows))
            for start in range(0, len(flat_rows), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                task = partial(_write_examples, self.source, epoch, flat_rows[chunk], take(flat, chunk))
                pending += self._workers.start(task)
        # Reshaping gives views, so the workers' writes to `flat` appear in `arrays`.
        arrays = {name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in flat.items()}
        return Reading(arrays, pending)


class Workers:
    """The threads of a run, started on first use and ended with the `with` block."""

    def __init__(self, config: DatasetConfig) -> None:
        self._count = cores.available() if config.workers is None else config.workers
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._threads is not None:
            # Examples in progress are abandoned.
            self._threads.shutdown(cancel_futures=True)
            self._threads = None

    def reader(self, source: DataSource) -> Reader:
        """Returns the reader of a source."""
        return Reader(source, self)

    def start(self, task: Callable[[], None]) -> list[Future[None]]:
        """Starts a task; without workers it is done here, in the thread that prefetches."""
        if not self._count:
            task()
            return []
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="examples")
        return [self._threads.submit(task)]


def _write_examples(source: DataSource, epoch: int, rows: Rows, arrays: Mapping[str, Array]) -> None:
    for index, row in enumerate(rows):
        try:
            example = source.example(int(row), epoch)
        except ConfigError:
            raise
        # The user's code may raise errors of any type.
        except Exception as error:
            raise DataError(f"{source.example_name(int(row))} can't be made: {raised(error)}") from error
        for name, values in example.items():
            arrays[name][index] = values
