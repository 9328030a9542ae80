"""Workers that make the examples of a batch: threads or processes.

Arrays in memory need none.

The caller decides the order of the examples: a worker gets rows and writes each example to its row's position. So the
number and kind of workers change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from runner.config.schema_data import DatasetConfig
from runner.data.augment import Augmented, write_examples
from runner.data.base import Array, ArraySpec, DataSource, Rows, empty_arrays, take
from runner.data.processes import Processes
from runner.errors import DataError, invalid
from runner.host import cores

# Examples per task of a worker. Fewer cost more for handing tasks over; more would share a batch unevenly.
_CHUNK = 16


# Writes some examples into arrays, in this process or in another one; see `runner.data.augment.write_examples`.
WriteExamples = Callable[[Augmented, int, Rows, Mapping[str, Array]], None]


class Reading:
    """A read in progress.

    Example:
      >>> Reading({"x": np.ones(2)}, []).result()
      {'x': array([1., 1.])}
    """

    def __init__(self, arrays: dict[str, Array], pending: list[Future[None]]) -> None:
        self._arrays = arrays
        self._pending = pending

    def result(self) -> dict[str, Array]:
        """Waits for the examples and returns their arrays.

        Raises:
          DataError: an example can't be made, or its worker died; the message names the file.
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
    """Reads one source, after augmentation.

    Attributes:
      source: the source.
      in_background: whether workers make the examples, so that starting a read early helps.
    """

    def __init__(
        self,
        source: DataSource,
        submit: Callable[[Callable[[], None]], Future[None]],
        write: WriteExamples | None,
    ) -> None:
        self.source = source
        self.in_background = write is not None
        self._submit = submit
        self._write = write

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of the arrays."""
        return self.source.specs

    def read(self, epoch: int, rows: Rows) -> dict[str, Array]:
        """Reads examples; see `begin`."""
        return self.begin(epoch, rows).result()

    def begin(self, epoch: int, rows: Rows) -> Reading:
        """Starts to read examples.

        Args:
          epoch: selects the random augmentation.
          rows: int64 of any shape S, rows of the source.

        Returns:
          The read in progress, whose arrays are (*S, *shape).
        """
        flat_rows = rows.ravel()
        pending: list[Future[None]] = []
        if self._write is None:
            flat = self.source.read(flat_rows)
        else:
            flat = empty_arrays(self.specs, len(flat_rows))
            for start in range(0, len(flat_rows), _CHUNK):
                pending.append(self._submit(self._chunk(epoch, flat_rows, flat, start)))
        # Reshaping gives views, so the workers' writes to `flat` appear in `arrays`.
        arrays = {name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in flat.items()}
        return Reading(arrays, pending)

    def _chunk(self, epoch: int, rows: Rows, arrays: Mapping[str, Array], start: int) -> Callable[[], None]:
        """Returns the task that makes one chunk of examples."""
        chunk = slice(start, start + _CHUNK)
        write = self._write
        source = self.source
        assert write is not None
        assert isinstance(source, Augmented)
        return lambda: write(source, epoch, rows[chunk], take(arrays, chunk))


class Workers:
    """The threads and processes of a run, started on first use and ended with the `with` block."""

    def __init__(self, config: DatasetConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        count = config.workers
        if count is None:
            count = cores.available()
        self._count = count
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
        """Returns the reader of a source.

        Raises:
          ConfigError: worker processes are required, and the source can't be sent to them.
        """
        if not source.one_at_a_time:
            return Reader(source, self._submit, None)
        if not isinstance(source, Augmented):
            source = Augmented(source, (), self._seed, False, source.specs)
        return Reader(source, self._submit, self._writer(source))

    def _writer(self, source: Augmented) -> WriteExamples:
        """Returns the function that makes examples, in this thread or a worker process."""
        kind = self._config.worker_kind
        if kind == "thread" or not self._count:
            return write_examples
        if self._processes is None:
            self._processes = Processes(self._count, self._seed)
        reason = self._processes.pickling_error(source)
        if reason:
            raise invalid(
                "dataset.worker_kind",
                kind,
                problem=f"the dataset can't be sent to a process ({reason})",
                fix="define it in a module, or set dataset.worker_kind=thread",
            )
        return self._processes.make

    def _submit(self, task: Callable[[], None]) -> Future[None]:
        if not self._count:
            # Without workers the task runs here, in the thread that prefetches.
            done: Future[None] = Future()
            try:
                task()
                done.set_result(None)
            except DataError as error:
                done.set_exception(error)
            return done
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="examples")
        return self._threads.submit(task)


def opened(config: DatasetConfig, seed: int) -> Workers:
    """Returns the workers of a run, for a `with` block; none is started yet."""
    return Workers(config, seed)
