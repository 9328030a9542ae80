"""Grain's worker processes, which make examples on request.

A Grain dataset is a stream, but our examples are requested by row. So the stream of each worker consists of answers
to requests, which reach the worker through a socket of its own. Grain starts the processes, returns the arrays through
shared memory and reports a process that died.
"""

from __future__ import annotations

import functools
import gc
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import NamedTuple

import cloudpickle
import grain
from absl import flags

from runner.data.augment import Augmented, name_of, write_examples
from runner.data.base import Array, Rows, empty_arrays
from runner.errors import DataError, describe
from runner.host import imports

# Keys of an answer: the arrays, or the text of an error.
_ARRAYS = "made"
_ERROR = "failed"
# On close, a busy worker gets this long to finish its chunk and leave cleanly; then it is killed.
_FINISH_S = 2.0
# Grain notices within this time that a process was killed, or that a starting process answers. Only then is nobody
# waiting for an answer any more, and the iterator may be closed.
_NOTICE_S = 30.0


class _Request(NamedTuple):
    """A request that the process which started a worker sends to it.

    Attributes:
      source: number of the source of the examples.
      pickled: that source, on the first request for it; None: the worker has it.
      epoch: selects the random augmentation.
      rows: of the examples.
    """

    source: int
    pickled: bytes | None
    epoch: int
    rows: Rows


class _Answers(grain.DatasetIterator):  # type: ignore[misc]
    """In the worker: receives a request per step and makes its examples."""

    def __init__(self, address: str, key: bytes) -> None:
        super().__init__()
        self._address = address
        self._key = key
        self._connection: Connection | None = None
        self._sources: dict[int, Augmented] = {}
        self._has_ended = False

    def __next__(self) -> dict[str, object]:
        try:
            if self._connection is None:
                self._connection = Client(self._address, authkey=self._key)
                self._connection.send(os.getpid())
            request: _Request = self._connection.recv()
        except (EOFError, OSError) as error:
            if self._has_ended:
                raise StopIteration from error
            self._has_ended = True
            # One more answer, after which Grain's thread in the parent releases the shared memory of the previous one.
            return {_ERROR: ""}
        try:
            return {_ARRAYS: self._examples(request)}
        # The error is returned as a value, because an exception would end the worker.
        except Exception as error:
            if isinstance(error, DataError):
                return {_ERROR: " ".join(str(error).split())}
            return {_ERROR: describe(error)}

    def _examples(self, request: _Request) -> dict[str, Array]:
        if request.pickled is not None:
            self._sources[request.source] = cloudpickle.loads(request.pickled)
        source = self._sources[request.source]
        arrays = empty_arrays(source.specs, len(request.rows))
        write_examples(source, request.epoch, request.rows, arrays)
        return arrays

    def get_state(self) -> dict[str, int]:
        """Returns an empty state: the parent decides what is requested."""
        return {}

    def set_state(self, state: dict[str, int]) -> None:
        """Does nothing; see `get_state`."""


class _AnswerStream(grain.IterDataset):  # type: ignore[misc]
    """A worker's answers, in the form that Grain sends to the worker."""

    def __init__(self, address: str, key: bytes) -> None:
        super().__init__()
        self._address = address
        self._key = key

    def __iter__(self) -> _Answers:
        return _Answers(self._address, self._key)


class _Worker:
    """One process, used by one thread at a time."""

    def __init__(self, seed: int) -> None:
        self._key = os.urandom(32)
        self._listener = Listener(family="AF_UNIX", authkey=self._key)
        self._connection: Connection | None = None
        self._pid = 0
        self._is_closed = False
        # Guards `_connection`, `_pid` and `_is_closed` between `_accept` and `close`.
        self._lock = threading.Lock()
        # Held while a thread waits for an answer.
        self._asking = threading.Lock()
        self._sent_sources: set[int] = set()
        # One answer at a time: before the next request there is nothing to prefetch.
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1)
        stream = _AnswerStream(str(self._listener.address), self._key)
        self._answers = iter(stream.mp_prefetch(options, worker_init_fn=functools.partial(_start_worker, seed)))

    def ask(self, number: int, pickled: bytes, epoch: int, rows: Rows) -> Mapping[str, object]:
        """Returns the worker's answer.

        Raises:
          RuntimeError: the worker died.
        """
        # The worker keeps a source, so it is sent only once.
        new_source = None if number in self._sent_sources else pickled
        request = _Request(number, new_source, epoch, rows)
        with self._asking:
            if self._connection is None:
                # Grain starts the process only when the first answer is requested below. So another thread waits for
                # its connection.
                threading.Thread(target=self._accept, args=(request,), daemon=True).start()
            else:
                # If the worker died, `next` below raises with the reason.
                with suppress(OSError):
                    self._connection.send(request)
            answer: Mapping[str, object] = next(self._answers)
        self._sent_sources.add(number)
        return answer

    def _accept(self, request: _Request) -> None:
        """Waits for the connection of the worker, and sends the first request."""
        # These errors mean that the worker was closed or died; Grain reports the latter.
        with suppress(OSError, EOFError):
            connection = self._listener.accept()
            pid = connection.recv()
            with self._lock:
                # A worker that connects after `close` gets no request, and so ends.
                if self._is_closed:
                    connection.close()
                    return
                self._pid = pid
                self._connection = connection
            connection.send(request)

    def close(self, *, busy: bool) -> None:
        """Ends the process; kills it if it is busy."""
        with self._lock:
            self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            if busy:
                with suppress(OSError):
                    os.kill(self._pid, signal.SIGKILL)
            else:
                # The last, empty answer; see `_Answers.__next__`.
                with suppress(RuntimeError, StopIteration):
                    next(self._answers)
        # Closing Grain's iterator would not wake a thread that waits for an answer. So that thread returns first.
        if self._asking.acquire(timeout=_NOTICE_S):
            self._asking.release()
        self._listener.close()
        self._answers.close()


class Processes:
    """A pool of worker processes, each started on first use. A process makes a few examples at a time."""

    def __init__(self, count: int, seed: int) -> None:
        """Creates the pool.

        Args:
          count: number of processes.
          seed: the run's, which seeds the import of user modules in the workers.
        """
        if not flags.FLAGS.is_parsed():
            # Grain's workers read absl's flags, which a program without absl never parses.
            flags.FLAGS.mark_as_parsed()
        self._workers = [_Worker(seed) for _ in range(count)]
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._pickled: list[tuple[Augmented, bytes]] = []
        self._lock = threading.Lock()

    def pickling_error(self, source: Augmented) -> str:
        """Returns why a source can't be sent to another process; empty if it can."""
        try:
            self._source_number(source)
        # The pickling of a user's object may raise errors of any type.
        except Exception as error:
            return describe(error)
        return ""

    def make(self, source: Augmented, epoch: int, rows: Rows, arrays: Mapping[str, Array]) -> None:
        """Makes examples in a free worker and writes them into arrays.

        Raises:
          DataError: an example can't be made, or the worker died.
        """
        # Pickling may fail, and a worker that was taken before would never be free again.
        number = self._source_number(source)
        worker = self._free.get()
        try:
            answer = worker.ask(number, self._pickled[number][1], epoch, rows)
        except (RuntimeError, StopIteration, OSError, ValueError) as error:
            # Grain appends advice to search its logs, which users of the runner do not have.
            reason = " ".join(str(error).split()).partition(". Search")[0] or "it ended"
            # Shuffled rows have no range.
            first = name_of(source, int(rows[0]))
            examples_made = first if len(rows) == 1 else f"{len(rows):,} examples, the first of them {first}"
            raise DataError(
                f"a data worker died while making {examples_made} ({reason}); if it ran out of memory, lower "
                "dataset.workers"
            ) from error
        finally:
            self._free.put(worker)
        if _ERROR in answer:
            raise DataError(str(answer[_ERROR]))
        examples = answer[_ARRAYS]
        assert isinstance(examples, Mapping)
        for name, values in examples.items():
            arrays[name][...] = values

    def close(self) -> None:
        """Ends the processes; kills those that are busy when for two seconds none became free."""
        free: list[_Worker] = []
        with suppress(queue.Empty):
            while len(free) < len(self._workers):
                free.append(self._free.get(timeout=_FINISH_S))
        while self._workers:
            worker = self._workers[-1]
            worker.close(busy=worker not in free)
            self._workers.pop()
        # Grain's iterators form reference cycles, and print errors if the interpreter's exit collects them. `free` is
        # cleared so that no reference to a worker is left.
        free.clear()
        gc.collect()

    def _source_number(self, source: Augmented) -> int:
        """Returns the number of a source, which is pickled on first use."""
        with self._lock:
            for number, (known, _) in enumerate(self._pickled):
                if known is source:
                    return number
            self._pickled.append((source, cloudpickle.dumps(source)))
            return len(self._pickled) - 1


def _start_worker(seed: int, index: int, count: int) -> None:
    """Prepares a worker: its parent handles terminal signals and ends it.

    Args:
      seed: of the run.
      index: of the worker, not used.
      count: of workers, not used.
    """
    del index, count
    _use_cpu_only()
    imports.watch(seed)
    # Ctrl-C reaches every process of the terminal's group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with_parent, args=(parent.sentinel,), daemon=True).start()


def _end_with_parent(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _use_cpu_only() -> None:
    """Hides accelerators from user code in a worker: their memory belongs to the run."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    # Grain imports JAX if it is installed, and JAX has then read the environment already.
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.config.update("jax_platforms", "cpu")
