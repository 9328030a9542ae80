"""Runs the table: as many workers at a time as there are cores, each fed model by model; one that dies or hangs is
put in place again, and what it held is tried case by case."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import forks
from tests.layers import table
from tests.layers.case import Case
from tests.layers.worker import STOCK, WRONG, Outcome

ROOT = Path(__file__).parents[2]
_TOGETHER = 12  # cases a model
_MODELS_A_WORKER = 12  # programs are never given back
_SECONDS, _SECONDS_A_CASE = 120.0, 120.0  # for a model: what hangs is ended, on a machine that is busy too
_STOCK_HUNG = f"stock Keras died, or did not train two steps in {_SECONDS + _SECONDS_A_CASE:.0f} s"


@dataclass(frozen=True)
class Job:
    """Some cases for one worker."""

    meshes: str
    names: tuple[str, ...]

    @property
    def kind(self) -> tuple[str, str]:
        """What kind of worker can do it."""
        return self.meshes, _xla_flags(self.names[0])


def _xla_flags(name: str) -> str:
    """Returns how XLA compiles a case, so that gradients of maxima over a whole dim are right."""
    return forks.RIGHT_MAXIMA if name.startswith("GlobalMaxPooling") else forks.SLOW_CODE


def jobs(chosen: Callable[[Case, str], bool]) -> list[Job]:
    """Returns the cases in models: neighbors together, so that what fails fails together."""
    wanted: dict[str, list[str]] = {}
    for mesh in ("batch8", "batch4_model2", "single"):  # the most devices first
        for case in table.on_mesh(mesh):
            if chosen(case, mesh):
                wanted.setdefault(case.name, []).append(mesh)
    alike: dict[tuple[str, str], list[str]] = {}
    for name, meshes in wanted.items():
        alike.setdefault((",".join(meshes), _xla_flags(name)), []).append(name)
    found = []
    for (together, _), names in alike.items():
        found += [Job(together, tuple(names[at : at + _TOGETHER])) for at in range(0, len(names), _TOGETHER)]
    return found


class _Worker:
    """One process, and how much it has done."""

    def __init__(self, meshes: str, xla_flags: str) -> None:
        self.kind, self.done = (meshes, xla_flags), 0
        self.is_stock = True  # whether stock Keras still trains
        command = [sys.executable, "-m", "tests.layers.worker", meshes]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": xla_flags, "PYTHONWARNINGS": "ignore"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = forks.Popen(command, library="jax", cwd=ROOT, env=environment, **pipes)

    def answer(self, names: Sequence[str], seconds: float) -> list[Outcome] | None:
        """Returns what became of some cases; None where the process died or took too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.done += 1
        try:
            self._process.stdin.write(json.dumps(names).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        self.is_stock = True
        watch = threading.Timer(seconds, self._process.kill)
        watch.start()
        try:
            for line in self._process.stdout:
                if "outcomes" in (said := json.loads(line)):
                    return [Outcome(**each) for each in said["outcomes"]]
                self.is_stock = False
        finally:
            watch.cancel()
        return None

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _all(case: Case, mesh: str) -> bool:
    del case, mesh
    return True


def run(chosen: Callable[[Case, str], bool] = _all, workers: int = 2) -> Iterator[Outcome]:
    """Yields the outcomes of the chosen cases, as they come.

    Args:
      chosen: tells whether a case is run on a mesh; all are, unless told.
      workers: processes at a time.
    """
    waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    for job in jobs(chosen):
        waiting.put(job)
    for _ in range(workers):
        waiting.put(None)
    found: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
    threads = [threading.Thread(target=_work, args=(waiting, found), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    left = workers
    while left:
        one = found.get()
        if one is None:
            left -= 1
        else:
            yield one


def _work(waiting: queue.SimpleQueue[Job | None], found: queue.SimpleQueue[Outcome | None]) -> None:
    worker: _Worker | None = None
    while (job := waiting.get()) is not None:
        todo = [job.names]
        while todo:
            names = todo.pop(0)
            if worker is None or worker.kind != job.kind or worker.done >= _MODELS_A_WORKER:
                if worker is not None:
                    worker.end()
                worker = _Worker(*job.kind)
            answered = worker.answer(names, _SECONDS + _SECONDS_A_CASE * len(names))
            if answered is None:
                kind, told = (STOCK, _STOCK_HUNG) if worker.is_stock else (WRONG, "its process died or hung")
                worker.end()
                worker = None
                if len(names) > 1:
                    todo += [(name,) for name in names]
                    continue
                answered = [Outcome(names[0], mesh, kind, told) for mesh in job.meshes.split(",")]
            for outcome in answered:
                found.put(outcome)
    if worker is not None:
        worker.end()
    found.put(None)
