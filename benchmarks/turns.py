"""Trainings that take turns: each one stops its own process after a block of steps, until it is continued.

Two trainings that run at the same time disturb each other, and two that run one after the other meet another load of
the machine. Blocks of less than a second that alternate meet nearly the same load, so their ratio can be measured.

    python -m benchmarks.turns CONFIG...    # the training itself; `Trainee` starts it
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contenders import ROOT, ContenderError
from runner.checkpoint.recorder import MetricRecorder
from runner.checkpoint.saver import Saver
from runner.config.schema import ProfileConfig
from runner.train import loop
from runner.train.profile import Profiler

# Environment variables of the training: steps of a block, steps before the first one, and the file of its blocks.
_BLOCK = "RUNNER_BENCHMARK_BLOCK"
_FIRST = "RUNNER_BENCHMARK_FIRST"
_FILE = "RUNNER_BENCHMARK_BLOCKS"


@dataclass(frozen=True)
class Block:
    """What one block of steps took.

    Attributes:
      steps: of the block, which a device call may have made a few steps longer.
      wall: seconds, without those in which the process was stopped.
      cpu: seconds of all threads of the process.
      saving: wall seconds in which the training itself waited for a save, without those in which the devices still
        did the steps before it.
    """

    steps: int
    wall: float
    cpu: float
    saving: float

    def __add__(self, other: Block) -> Block:
        """Returns the sum of two blocks."""
        return Block(
            self.steps + other.steps,
            self.wall + other.wall,
            self.cpu + other.cpu,
            self.saving + other.saving,
        )

    def __sub__(self, other: Block) -> Block:
        """Returns the difference of two blocks."""
        return Block(
            self.steps - other.steps,
            self.wall - other.wall,
            self.cpu - other.cpu,
            self.saving - other.saving,
        )


def _trace_nothing(_folder: Path) -> AbstractContextManager[None]:
    return nullcontext()


class _Turns(Profiler):
    """Records the blocks, and stops the process after each; the loop calls it after every device call."""

    def __init__(self, block: int, first: int, file: Path) -> None:
        """Begins.

        Args:
          block: steps.
          first: steps before the first block.
          file: gets a line per block.
        """
        super().__init__(ProfileConfig(), _trace_nothing, file.parent)
        self._block = block
        self._next = first
        self._file = file
        self._begun: Block | None = None

    def after_call(self, step: int, wait: Callable[[], None]) -> None:
        """Ends a block if its steps are done."""
        del wait
        if step < self._next:
            return
        if self._begun is not None:
            block = _so_far(step) - self._begun
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(block)) + "\n")
        self._next += self._block
        os.kill(os.getpid(), signal.SIGSTOP)
        # Only now: the time in which the process was stopped is no part of a block.
        self._begun = _so_far(step)


def _so_far(step: int) -> Block:
    """Returns the steps and the seconds of this process so far; only differences of the seconds mean something."""
    return Block(step, time.perf_counter(), time.process_time(), _saving.seconds)


class _Saving:
    """Wall seconds in which the training waited for saves, without those in which the devices still trained."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sign = 0.0

    def timed(self, method: Callable[..., Any], sign: float) -> Callable[..., Any]:
        """Returns a method whose time is added; with sign -1 it is taken off, inside another one only."""

        def call(*given: Any) -> Any:
            outer = self._sign
            counts = sign > 0 or outer > 0
            self._sign = sign
            begun = time.perf_counter()
            try:
                return method(*given)
            finally:
                self._sign = outer
                if counts:
                    self.seconds += sign * (time.perf_counter() - begun)

        return call


_saving = _Saving()


class Trainee:
    """A training in a process of its own, which runs only while it has its turn."""

    def __init__(self, overrides: list[str], env: Mapping[str, str], block: int, first: int) -> None:
        """Starts the training, and waits until it has done the steps before the first block.

        Args:
          overrides: of the config.
          env: of the process.
          block: steps of a block, which ends at the end of a device call.
          first: steps before the first block, in which the step is compiled.

        Raises:
          ContenderError: the training failed.
        """
        # Both are removed with the object.
        self._folder = tempfile.TemporaryDirectory(prefix="turns-")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._blocks = Path(self._folder.name) / "blocks"
        turns = {_BLOCK: str(block), _FIRST: str(first), _FILE: str(self._blocks)}
        command = [sys.executable, "-m", "benchmarks.turns", *overrides]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={**env, **turns}, stdout=self._output, stderr=subprocess.STDOUT
        )
        self._wait_until_stopped()

    def take_turn(self) -> Block:
        """Has the training do one block, and returns it; raises ContenderError if the training ended."""
        self._process.send_signal(signal.SIGCONT)
        self._wait_until_stopped()
        last = self._blocks.read_text(encoding="utf-8").splitlines()[-1]
        return Block(**json.loads(last))

    def end(self) -> None:
        """Kills the training, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _wait_until_stopped(self) -> None:
        # `os.WUNTRACED` reports a stop too, which `Popen.wait` does not.
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise self._error(f"ended early with exit code {self._process.returncode}")

    def _error(self, problem: str) -> ContenderError:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-8:]
        return ContenderError("\n".join([problem, *lines]))


def main() -> None:
    """Runs `python -m runner` with a loop that stops the process after each block."""
    from runner.__main__ import main as train_command

    train = loop.train

    def train_in_turns(config: Any, engine: Any, splits: Any, hooks: loop.LoopHooks, *others: Any) -> loop.Result:
        turns = _Turns(int(os.environ[_BLOCK]), int(os.environ[_FIRST]), Path(os.environ[_FILE]))
        return train(config, engine, splits, replace(hooks, profiler=turns), *others)

    loop.train = train_in_turns
    MetricRecorder.drain = _saving.timed(MetricRecorder.drain, -1.0)  # type: ignore[method-assign]
    Saver._put = _saving.timed(Saver._put, 1.0)  # type: ignore[method-assign]
    train_command()


if __name__ == "__main__":
    main()
