"""Breaks runs of several processes, one process of each, and resumes them: nothing may hang, be left, or be lost.

A case is a config, a process of it or its launcher, what is done to that, and when. Each run must end soon, with the
exit code and the recorded status that say how, in one line; no process may be left; and `resume=latest` must end as
the run that nothing was done to, bit for bit, every point of every metric logged once.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from runner.processes.launch import free_port
from tests import forks, stores
from tests.campaign import faults
from tests.campaign.base import Case
from tests.campaign.faults import CONFIG, LAUNCHER, ROOM, Fault
from tests.campaign.left import Left, differences, left_in

CASES = 50
_SECRET = "what the processes of the campaign share"
_LONGEST_S = 180.0  # that a run may take to which nothing was done
_SOON_S = 30.0  # that one may take to end after the fault
_GONE_S = 1.0  # that others may be seen after the launcher has ended
_POLL_S = 0.05
_INTERRUPTED = {128 + signum for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
_EVERY, _PER_EPOCH, _EPOCHS = 7, 22, 6
_ALL_DONE = "the run has done all of its"
_LAST_WORDS = re.compile(r"(\[\d+\] )?(error: .+|interrupted)")
_MAY_BE_SAID = re.compile(r"(\[\d+\] )?(warning|tracking): .*|could not write .*|the checkpoints of steps .*removed.*")
BASE = (
    "dataset=digits",
    "layout=fsdp",  # every process has a part of the state
    "model.hidden=[32]",
    f"trainer.epochs={_EPOCHS}",
    "trainer.log_every_steps=2",
    "trainer.steps_per_call=3",
    f"trainer.checkpoint.every_steps={_EVERY}",
    "trainer.checkpoint.best=eval/loss",
    "trainer.log_model=false",
    "trainer.progress=none",
)


@dataclass(frozen=True)
class Config:
    """What is trained.

    Attributes:
      engine: of the runner.
      processes: how many.
    """

    engine: str
    processes: int

    def __str__(self) -> str:
        """Returns its parts."""
        return f"{self.engine} in {self.processes}"

    def overrides(self) -> list[str]:
        """Returns the command line, but for the cluster."""
        cache = ["engine.compilation_cache=false"] if self.engine == "jax" else []
        return [*BASE, f"mesh=batch{self.processes}", f"engine={self.engine}", *cache]


CONFIGS = (Config("jax", 2), Config("jax", 2), Config("jax", 4), Config("jax", 2))


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
      code: its exit code.
      seconds: that it took, from the fault where there was one.
      lines: of its stderr.
      left: the processes that were left, in words.
    """

    code: int | None
    seconds: float
    lines: tuple[str, ...]
    left: str = ""


class Runs:
    """The commands of one run, one after another, in a folder of its own."""

    def __init__(self, folder: Path, config: Config) -> None:
        folder.mkdir(parents=True)
        self.folder, self.uri, self._config, self._lives = folder, stores.store_in(folder), config, 0

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints there."""
        return sorted({int(path.name[5:14]) for path in self.folder.glob("checkpoints/*/step-*")})

    def _start(self, *given: str, name: str = "") -> subprocess.Popen[bytes]:
        """Starts a command, which prints into `life-<number><name>.out` and `.err`."""
        places = [f"tracking.uri={self.uri}", f"trainer.checkpoint.folder={self.folder}/checkpoints"]
        command = [sys.executable, "-m", "runner", *given, *places, f"hydra.run.dir={self.folder}/run-{self._lives}"]
        environment = os.environ | {"XLA_FLAGS": forks.SLOW_CODE, "RUNNER_CLUSTER_SECRET": _SECRET}
        library = forks.JAX if self._config.engine == "jax" else forks.TENSORFLOW
        with self._said(f"{name}.out").open("wb") as out, self._said(f"{name}.err").open("wb") as err:
            return forks.Popen(
                command, library=library, cwd=self.folder, env=environment, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _said(self, name: str) -> Path:
        return self.folder / f"life-{self._lives}{name}"

    def _begin(self) -> subprocess.Popen[bytes]:
        """Starts the run, or goes on with it where it left a checkpoint."""
        self._lives += 1
        cluster = ["cluster=local", f"cluster.processes={self._config.processes}"]
        given = ["resume=latest"] if self.steps else [*self._config.overrides(), *cluster]
        return self._start(*given)

    def whole(self) -> Ended:
        """Runs to the end, with nothing done to it."""
        return self._ended([self._begin()], time.monotonic(), _LONGEST_S)[0]

    def broken(self, fault: Fault, draw: random.Random) -> tuple[Ended, bool]:
        """Starts the run and does it a fault; returns how it ended, and whether the fault came before that."""
        if fault.kind == CONFIG:
            return self._differing(fault), True
        process = self._begin()
        run, said = self.folder / f"run-{self._lives}", self._said(".out")
        pids: list[int] = []

        def is_over() -> bool:
            return process.poll() is not None

        def are_there() -> bool:
            pids[:] = [one.pid for one in faults.there(self.folder) if one.parent == process.pid]
            return len(pids) >= self._config.processes

        came = fault.rank == LAUNCHER or faults.until(are_there, is_over)
        came = came and faults.await_moment(fault, self.folder, run, said, is_over)
        pids.append(process.pid)  # the last, as the launcher's number is -1
        began = time.monotonic()
        came = came and faults.inflict(fault, pids[fault.rank], draw)
        return self._ended([process], began, _SOON_S if came else _LONGEST_S)[0], came

    def _differing(self, fault: Fault) -> Ended:
        """Starts processes by hand, one of them with another config; returns how the last of them ended.

        Raises:
          RuntimeError: they do not say alike in what that one differs.
        """
        self._lives += 1
        count, began, started = self._config.processes, time.monotonic(), []
        cluster = ["cluster=explicit", f"cluster.processes={count}", f"cluster.coordinator=127.0.0.1:{free_port()}"]
        for rank in range(count):
            other = ["optimizer.learning_rate=0.0123"] if rank == fault.rank else []
            given = [*self._config.overrides(), *cluster, f"cluster.index={rank}", *other]
            started.append(self._start(*given, name=f"-{rank}"))
        found = self._ended(started, began, _SOON_S, [f"-{rank}" for rank in range(count)])
        if len({(one.code, one.lines) for one in found}) != 1 or "optimizer.learning_rate is" not in str(found):
            raise RuntimeError(f"the processes end as {found}")
        return found[-1]

    def _ended(
        self, processes: Sequence[subprocess.Popen[bytes]], began: float, most: float, names: Sequence[str] = ("",)
    ) -> list[Ended]:
        """Waits for the ends of commands and of all that they started; kills what is left after that."""
        codes: list[int | None] = []
        for process in processes:
            try:
                codes.append(process.wait(max(0.1, began + most - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        # Where the launcher was killed, the others have the same time to end.
        patience = began + most if -signal.SIGKILL in codes else time.monotonic() + _GONE_S
        while faults.there(self.folder) and time.monotonic() < patience:
            time.sleep(_POLL_S)
        seconds = time.monotonic() - began
        left = faults.end(self.folder)
        for process in processes:
            process.wait()
        return [Ended(code, seconds, self._lines(name), left) for code, name in zip(codes, names, strict=True)]

    def _lines(self, name: str) -> tuple[str, ...]:
        text = self._said(f"{name}.err").read_text(errors="replace")
        return tuple(line for line in text.splitlines() if line.strip())

    def statuses(self) -> list[str]:
        """Returns the status of each recorded run, the newest last."""
        with closing(sqlite3.connect(self.folder / "mlflow.db")) as connection:
            return [status for (status,) in connection.execute("SELECT status FROM runs ORDER BY start_time")]


def judge(fault: Fault | None, done: Ended, status: str | None) -> list[str]:
    """Returns what a run did that it must not, in words.

    Args:
      fault: that was done to it; None: it came too late.
      done: how it ended.
      status: as recorded, before anything else is started; None: it had not come so far.
    """
    wrong = []
    if done.code is None:
        wrong.append(f"has not ended after {_SOON_S:.0f} s")
    if done.left:
        wrong.append(f"leaves processes: {done.left}")
    code, statuses = _expected(fault)
    at_the_end = fault is not None and fault.moment == "end" and done.code == code  # when all had been recorded
    finished = status == "FINISHED" and (done.code == 0 or at_the_end)
    if done.code != code and not finished:
        wrong.append(f"exit code {done.code} in place of {code}, and ends with {done.lines[-2:]}")
    if status not in statuses and not finished:
        wrong.append(f"status {status} in place of {' or '.join(map(str, statuses))}")
    words = [line for line in done.lines if _LAST_WORDS.fullmatch(line)]
    others = [line for line in done.lines if line not in words and not _MAY_BE_SAID.fullmatch(line)]
    if others:
        wrong.append(f"says {others[:3]}")
    wanted = 0 if done.code in (0, -signal.SIGKILL) else 1
    if len(words) != wanted:
        wrong.append(f"ends with the lines {words}")
    if words and (words[0] == "interrupted") != (done.code in _INTERRUPTED):
        wrong.append(f"exit code {done.code}, and says {words}")
    return wrong


def _expected(fault: Fault | None) -> tuple[int, tuple[str | None, ...]]:
    """Returns the exit code, and the statuses that a run may have, after a fault."""
    if fault is None or fault.kind == ROOM or (fault.kind == "SIGSTOP" and fault.rank == LAUNCHER):
        return 0, ("FINISHED",)
    if fault.signum is not None:
        return 128 + fault.signum, ("KILLED", None)
    if fault.rank == LAUNCHER:
        # What a run prints into a pipe that nobody reads may fail before the signal comes that ends it.
        return -signal.SIGKILL, ("KILLED", None, *(["FAILED"] if fault.moment == "end" else []))
    if fault.kind == CONFIG:
        return 1, (None,)
    # Nobody records the end of a process 0 that is killed, but the next start, as KILLED.
    return 1, ("FAILED", None, *(["RUNNING"] if fault.rank == 0 and fault.kind == "SIGKILL" else []))


class References:
    """The runs that nothing was done to, one a config, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[Config, Left | RuntimeError]()

    def of(self, config: Config) -> Left:
        """Returns what a config's run leaves.

        Raises:
          RuntimeError: it does not even end well with nothing done to it.
        """
        if config not in self._made:
            self._made[config] = self._run(config)
        made = self._made[config]
        if isinstance(made, RuntimeError):
            raise made
        return made

    def _run(self, config: Config) -> Left | RuntimeError:
        runs = Runs(self._folder / str(config).replace(" ", "-"), config)
        done = runs.whole()
        if wrong := judge(None, done, (runs.statuses() or [None])[-1]):
            return RuntimeError(f"nothing was done to it, and yet it {'; '.join(wrong)}: {done.lines}")
        return left_in(runs.folder, runs.uri)


def tried(config: Config, fault: Fault, draw: random.Random, folder: Path, references: References) -> Case:
    """Does a fault to a run, goes on with it, and compares what it has left with a run that nothing was done to."""
    name = f"{config}: {fault}"
    wrong, note = [], ""
    try:
        whole, runs = references.of(config), Runs(folder, config)
        done, came = runs.broken(fault, draw)
        status = (runs.statuses() or [None])[-1]
        note = f"{'' if came else 'too late, '}{done.code} and {status} after {done.seconds:.1f} s"
        wrong += judge(fault if came else None, done, status)
        at = max(runs.steps, default=0)
        again = runs.whole()
        if again.code == 2 and status == "FINISHED" and _ALL_DONE in str(again.lines):
            note += ", all done"
        else:
            note += f", resumed at {at}"
            wrong += [f"resumed it {one}" for one in judge(None, again, runs.statuses()[-1])]
        left = left_in(runs.folder, runs.uri)
        failed = [one for one in left.faults if one.endswith(" is FAILED")]  # a run without a checkpoint begins again
        left = replace(left, faults=tuple(one for one in left.faults if one not in failed))
        wrong += differences(whole, left, asked=int(came), starts=2)
    except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
        faults.end(folder)
    if not wrong:
        shutil.rmtree(folder)
    return Case(name, not wrong, f"{note}; {'; '.join(wrong)[:1500]}" if wrong else note)


def drawn(number: int, seed: int) -> tuple[Config, Fault, random.Random]:
    """Returns a case: its config, what is done to it, and what decides the rest."""
    draw = random.Random(f"{seed} {number}")
    config = CONFIGS[number % len(CONFIGS)]
    return config, faults.drawn(draw, config.processes, _EVERY, _PER_EPOCH, _EPOCHS * _PER_EPOCH), draw


def run(cases: int, seed: int, folder: Path, first: int = 1) -> Iterator[Case]:
    """Breaks runs, one at a time, from the first; see `tests.campaign.base.Campaign`."""
    references = References(folder / "whole")
    for number in range(first, first + cases):
        case = tried(*drawn(number, seed), folder / f"case-{number}", references)
        alone = f"; alone: python -m tests.campaign processes --seed {seed} --first {number} --cases 1"
        yield case if case.held else replace(case, note=case.note + alone)
