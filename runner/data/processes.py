"""Worker processes, which make examples on request."""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, ProcessPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path

import cloudpickle

from runner.data.augment import Augmented, write_examples
from runner.data.base import Array, Rows, empty_arrays
from runner.errors import DataError, describe
from runner.host import imports


class Processes:
    """A pool of worker processes, started on first use. A process makes a few examples at a time."""

    def __init__(self, count: int, seed: int) -> None:
        """Creates the pool.

        Args:
          count: number of processes.
          seed: the run's, which seeds the import of user modules in the workers.
        """
        context = multiprocessing.get_context("spawn")
        # The workers end when this process closes its end of the pipe, also in the middle of an example.
        pipe_end, self._alive = context.Pipe(duplex=False)
        # A worker that needs a source reads it here, once. The folder is this user's only.
        self._folder = tempfile.TemporaryDirectory(prefix="runner-data-")
        self._pool = ProcessPoolExecutor(count, context, _start_worker, (seed, pipe_end, self._folder.name))
        self._written: list[tuple[Augmented, Path]] = []
        self._lock = threading.Lock()

    def pickling_error(self, source: Augmented) -> str:
        """Returns why a source can't be sent to another process; empty if it can."""
        try:
            self._file(source)
        # The pickling of a user's object may raise errors of any type.
        except Exception as error:
            return describe(error)
        return ""

    def make(self, source: Augmented, epoch: int, rows: Rows, arrays: Mapping[str, Array]) -> None:
        """Makes examples in a free worker and writes them into arrays.

        Raises:
          DataError: an example can't be made, or a worker died.
        """
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
    """Prepares a worker: its parent handles terminal signals and ends it."""
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
        write_examples(source, epoch, rows, arrays)
    except Exception as error:
        return " ".join(str(error).split()) if isinstance(error, DataError) else describe(error)
    return arrays


@functools.cache
def _source(file: Path) -> Augmented:
    source: Augmented = cloudpickle.loads(file.read_bytes())
    return source
