"""Grain's worker processes, each of which makes the examples that it is asked for.

A Grain dataset is a stream, and ours are asked for by rows: so each worker's stream are the answers to what comes by
a socket of its own. Grain starts the processes, brings the arrays back by shared memory and tells when one is gone.
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

import cloudpickle
import grain
from absl import flags

from runner.data.augment import Augmented, make, name_of
from runner.data.base import Array, Rows, empty
from runner.errors import DataError, describe
from runner.host import imports

_MADE = "made"
_FAILED = "failed"
_LAST_ANSWER_S = 2.0
_GONE_S = 30.0  # within which Grain tells of a process that was killed, or one that was starting answers


# What a worker is asked for: the source's number; the source pickled, the first time that this worker is asked for it,
# by the process that started the worker; the epoch whose draws are taken; rows of the examples.
_Request = tuple[int, bytes | None, int, Rows]


class _Answers(grain.DatasetIterator):  # type: ignore[misc]
    """In the worker: takes a request, makes its examples."""

    def __init__(self, address: str, key: bytes) -> None:
        super().__init__()
        self._place = (address, key)
        self._connection: Connection | None = None
        self._sources: dict[int, Augmented] = {}
        self._ended = False

    def __next__(self) -> dict[str, object]:
        try:
            if self._connection is None:
                self._connection = Client(self._place[0], authkey=self._place[1])
                self._connection.send(os.getpid())
            number, pickled, epoch, rows = self._connection.recv()
        except (EOFError, OSError) as error:
            if self._ended:
                raise StopIteration from error
            self._ended = True
            return {_FAILED: ""}  # Grain's thread in the parent then lets go of the arrays that came before
        try:
            if pickled is not None:
                self._sources[number] = cloudpickle.loads(pickled)
            source = self._sources[number]
            made = empty(source.specs, len(rows))
            make(source, epoch, rows, made)
            return {_MADE: made}
        except Exception as error:  # told as a value: an exception would end the worker
            return {_FAILED: " ".join(str(error).split()) if isinstance(error, DataError) else describe(error)}

    def get_state(self) -> dict[str, int]:
        """Nothing: what is asked for is the parent's."""
        return {}

    def set_state(self, state: dict[str, int]) -> None:
        """Nothing to set."""


class _Stream(grain.IterDataset):  # type: ignore[misc]
    """A worker's answers, as Grain sends it to the worker."""

    def __init__(self, address: str, key: bytes) -> None:
        super().__init__()
        self._place = (address, key)

    def __iter__(self) -> _Answers:
        return _Answers(*self._place)


class _Worker:
    """One process; asked by one thread at a time."""

    def __init__(self, seed: int) -> None:
        self._key = os.urandom(32)
        self._listener = Listener(family="AF_UNIX", authkey=self._key)
        self._connection: Connection | None = None
        self._pid = 0
        self._closed = False
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._known: set[int] = set()
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1)
        stream = _Stream(str(self._listener.address), self._key)
        self._answers = iter(stream.mp_prefetch(options, worker_init_fn=functools.partial(_begin, seed)))

    def ask(self, number: int, pickled: bytes, epoch: int, rows: Rows) -> Mapping[str, object]:
        """Returns a worker's answer.

        Raises:
          RuntimeError: it died.
        """
        request = (number, None if number in self._known else pickled, epoch, rows)
        with self._asking:
            if self._connection is None:
                threading.Thread(target=self._accept, args=(request,), daemon=True).start()
            else:
                with suppress(OSError):  # it died: Grain tells how
                    self._connection.send(request)
            answer: Mapping[str, object] = next(self._answers)
        self._known.add(number)
        return answer

    def _accept(self, request: _Request) -> None:
        with suppress(OSError, EOFError):  # closed, or it died: Grain tells how
            connection = self._listener.accept()
            pid = connection.recv()
            with self._lock:  # one that comes when the block has ended is asked for nothing, and so ends
                if self._closed:
                    connection.close()
                    return
                self._pid = pid
                self._connection = connection
            connection.send(request)

    def close(self, *, busy: bool) -> None:
        """Ends the process; one that is busy at once."""
        with self._lock:
            self._closed = True
        if self._connection is not None:
            self._connection.close()
            if busy:
                with suppress(OSError):
                    os.kill(self._pid, signal.SIGKILL)
            else:
                with suppress(RuntimeError, StopIteration):
                    next(self._answers)
        if self._asking.acquire(timeout=_GONE_S):  # the end of Grain's iterator wakes nobody who waits for an answer
            self._asking.release()
        self._listener.close()
        self._answers.close()


class Processes:
    """Worker processes, started when they are first asked; each makes a few examples at a time."""

    def __init__(self, count: int, seed: int) -> None:
        """Takes how many there are, and the run's seed, of which the user's modules draw as they are imported."""
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain's workers read its flags, which a program without absl never parses
        self._workers = [_Worker(seed) for _ in range(count)]
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._pickled: list[tuple[Augmented, bytes]] = []
        self._lock = threading.Lock()

    def can_take(self, source: Augmented) -> str:
        """Returns why a source can't be handed to another process; empty where it can."""
        try:
            self._number(source)
        except Exception as error:  # whatever an object's own pickling raises
            return describe(error)
        return ""

    def __call__(self, source: Augmented, epoch: int, rows: Rows, made: Mapping[str, Array]) -> None:
        """Has a free worker make examples.

        Raises:
          DataError: one can't be made, or the worker died.
        """
        worker = self._free.get()
        number = self._number(source)
        try:
            answer = worker.ask(number, self._pickled[number][1], epoch, rows)
        except (RuntimeError, StopIteration, OSError, ValueError) as error:
            names = sorted({name_of(source, int(row)) for row in (rows[0], rows[-1])})
            why = " ".join(str(error).split()).partition(". Search")[0] or "it ended"
            raise DataError(
                f"a worker process is gone while it made the examples from {' to '.join(names)} ({why}); if it was "
                "killed for memory, set dataset.workers lower"
            ) from error
        finally:
            self._free.put(worker)
        if _FAILED in answer:
            raise DataError(str(answer[_FAILED]))
        arrays = answer[_MADE]
        assert isinstance(arrays, Mapping)
        for name, array in arrays.items():
            made[name][...] = array

    def close(self) -> None:
        """Ends the processes: those that are asked for something after a moment, whatever they do."""
        free: list[_Worker] = []
        with suppress(queue.Empty):
            while len(free) < len(self._workers):
                free.append(self._free.get(timeout=_LAST_ANSWER_S))
        while self._workers:
            self._workers[-1].close(busy=self._workers[-1] not in free)
            self._workers.pop()
        free.clear()
        gc.collect()  # Grain's iterators hold one another, and complain where the interpreter's end takes them down

    def _number(self, source: Augmented) -> int:
        with self._lock:
            for number, (known, _) in enumerate(self._pickled):
                if known is source:
                    return number
            self._pickled.append((source, cloudpickle.dumps(source)))
            return len(self._pickled) - 1


def _begin(seed: int, index: int, count: int) -> None:
    """In a worker: leaves signals of the terminal to the parent, and ends with it however that ends.

    Args:
      seed: of the run.
      index: of the worker.
      count: of workers.
    """
    del index, count
    _leave_accelerators()
    imports.watch(seed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def end_with_parent() -> None:
            wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=end_with_parent, daemon=True).start()


def _leave_accelerators() -> None:
    """Keeps libraries that the user's code imports in a worker to its CPU: the memory of the others is the run's."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    jax = sys.modules.get("jax")  # Grain imports it where it is installed, and it has read its environment
    if jax is not None:
        jax.config.update("jax_platforms", "cpu")
