"""Loses parts of runs that are started again by themselves: each must come to its end as if nothing had been lost.

A case is a run of several processes that the launcher or the supervisor starts again, and one to three losses: of a
process, of what starts it, of its answers, or of its disk. Whatever kills the command that a person has typed is
followed by the same command line, as a scheduler or a container's restart policy does it. In the end there must be one
recorded run, its parameters those of a run without losses bit for bit, and every point of every metric logged once.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests import forks, stores
from tests.campaign import faults
from tests.campaign.base import Case
from tests.campaign.faults import DISK, ROOM, Fault
from tests.campaign.left import Left, differences, left_in
from tests.campaign.processes import CONFIGS, Config

CASES = 60
NAME = "exp1"
_KINDS = ("SIGKILL", "SIGSTOP", DISK, ROOM)
_WEIGHTS = (5, 2, 1, 1)
_MOST_LOSSES = 3
_LONGEST_S = 420.0
_POLL_S = 0.02
# More than the losses of a case: the run itself must not give up.
_RESTARTS = 20
STARTERS = ("launcher", "supervisor")


@dataclass(frozen=True)
class Loss:
    """One loss.

    Attributes:
      kind: of `faults.KINDS`.
      starter: whether it is the loss of the command that was typed, and not of a process that it has started.
      saves: checkpoints that are written before it, after the loss before.
      delay: seconds after the last of these.
    """

    kind: str
    starter: bool
    saves: int
    delay: float

    def __str__(self) -> str:
        """Returns it in words."""
        who = "the starter" if self.starter else "a process"
        return f"{self.kind} of {who} {self.delay:.2f} s after {self.saves} saves"


@dataclass(frozen=True)
class Plan:
    """What happens to a run.

    Attributes:
      config: that is trained.
      starter: `launcher` or `supervisor`, which starts the run again.
      losses: in their order.
    """

    config: Config
    starter: str
    losses: tuple[Loss, ...]

    def __str__(self) -> str:
        """Returns it in words."""
        return f"{self.config} by the {self.starter}: {', then '.join(map(str, self.losses))}"


def drawn(number: int, seed: int) -> tuple[Plan, random.Random]:
    """Returns a case, and what decides the rest."""
    draw = random.Random(f"{seed} {number}")
    losses: list[Loss] = []
    for _ in range(draw.randint(1, _MOST_LOSSES)):
        kind = draw.choices(_KINDS, _WEIGHTS)[0]
        # A starter that is suspended for good would be ended by nobody, and its disk is that of its processes.
        starter = kind == "SIGKILL" and draw.random() < 0.3
        losses.append(Loss(kind, starter, draw.randint(1, 4), round(draw.uniform(0.0, 0.5), 2)))
    return Plan(CONFIGS[number % len(CONFIGS)], STARTERS[number % len(STARTERS)], tuple(losses)), draw


class Run:
    """A named run in a folder of its own, and the command that starts it."""

    def __init__(self, folder: Path, config: Config, starter: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.uri = stores.store_in(folder)
        self._config = config
        cluster = ["cluster=local", f"cluster.processes={config.processes}", "cluster.open_ports=true"]
        self._command = [
            *(sys.executable, "-m", "runner", *config.overrides(), *cluster, "resume=auto", f"name={NAME}"),
            *(f"tracking.uri={self.uri}", f"trainer.checkpoint.folder={folder}/checkpoints"),
            *(f"hydra.run.dir={folder}/run-1", f"cluster.restarts={_RESTARTS}"),
        ]
        if starter == "supervisor":
            self._command = [sys.executable, "-m", "runner.supervise", "--", *self._command]

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the command; what it prints is added to `out` and `err`."""
        environment = os.environ | {"XLA_FLAGS": forks.SLOW_CODE}
        library = forks.JAX if self._config.engine == "jax" else forks.TENSORFLOW
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            return forks.Popen(
                self._command, library=library, cwd=self.folder, env=environment, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def saves(self) -> int:
        """Returns the step of the newest checkpoint; 0: there is none."""
        steps = [int(path.name[5:14]) for path in self.folder.glob("checkpoints/*/step-?????????")]
        return max(steps, default=0)

    def left(self) -> Left:
        """Returns what the run has left."""
        return left_in(self.folder, self.uri, NAME)


def survived(run: Run, losses: tuple[Loss, ...], draw: random.Random) -> tuple[int | None, int]:
    """Runs to the end with losses.

    Returns:
      The exit code of the command that was started last, None if it did not end in time; and the number of losses that
      came before the end.
    """
    deadline = time.monotonic() + _LONGEST_S
    process = run.start()
    came = 0
    for loss in losses:
        if not _saved(run, loss.saves, process):
            break
        time.sleep(loss.delay)
        if not _inflict(loss, run, process, draw):
            break
        came += 1
        if loss.starter:
            process.wait()
            process = run.start()
    while True:
        try:
            code = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None, came
        # Its own process may have been lost with another one: a launcher under a supervisor, say. It is started again.
        if code in (0, 2) or time.monotonic() > deadline:
            return code, came
        process = run.start()


def _saved(run: Run, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Waits for more checkpoints; returns whether they came before the run was over."""
    for _ in range(count):
        before = run.saves()
        deadline = time.monotonic() + _LONGEST_S / 3
        while run.saves() <= before:
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    return True


def _inflict(loss: Loss, run: Run, process: subprocess.Popen[bytes], draw: random.Random) -> bool:
    if loss.starter:
        process.kill()
        return True
    others = [one.pid for one in faults.there(run.folder) if one.pid != process.pid]
    if not others:
        return False
    # The youngest are processes of the run; an older one may be the launcher below the supervisor.
    pid = draw.choice(others) if loss.kind == "SIGKILL" else others[-1]
    return faults.inflict(Fault(loss.kind, 0, "step", 0, 0.0), pid, draw)


class References:
    """Runs without losses, one per config, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Config, Left] = {}

    def of(self, config: Config) -> Left:
        """Returns what a config's run leaves.

        Raises:
          RuntimeError: it fails.
        """
        if config not in self._made:
            run = Run(self._folder / str(config).replace(" ", "-"), config, "launcher")
            code, _ = survived(run, (), random.Random(0))
            if code != 0:
                raise RuntimeError(f"a run without losses ends with exit code {code}")
            self._made[config] = run.left()
        return self._made[config]


def tried(plan: Plan, draw: random.Random, folder: Path, references: References) -> Case:
    """Runs with losses, and compares what is left with a run without them."""
    wrong: list[str] = []
    note = ""
    try:
        whole = references.of(plan.config)
        run = Run(folder, plan.config, plan.starter)
        code, came = survived(run, plan.losses, draw)
        time.sleep(1.0)
        still_there = faults.end(folder)
        note = f"{came} losses, exit code {code}"
        if code != 0:
            errors = (folder / "err").read_text(errors="replace").splitlines()[-3:]
            wrong.append(f"exit code {code}: {errors}")
        if still_there:
            wrong.append(f"leaves processes: {still_there}")
        if code == 0:
            wrong += differences(whole, run.left(), asked=came, starts=2 + came)
    except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
        faults.end(folder)
    if not wrong:
        shutil.rmtree(folder)
    return Case(str(plan), not wrong, f"{note}; {'; '.join(wrong)[:1500]}" if wrong else note)


def run(cases: int, seed: int, folder: Path, first: int = 1) -> Iterator[Case]:
    """Runs with losses, one at a time, from the first; see `tests.campaign.base.Campaign`."""
    references = References(folder / "whole")
    for number in range(first, first + cases):
        case = tried(*drawn(number, seed), folder / f"case-{number}", references)
        alone = f"; alone: python -m tests.campaign survive --seed {seed} --first {number} --cases 1"
        yield case if case.held else replace(case, note=case.note + alone)
