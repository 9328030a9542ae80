"""Loses parts of runs that are started again by themselves: each must come to its end as if nothing had been lost.

A case is a run of several processes that the launcher or the supervisor starts again, and one to three losses: of a
process, of what starts it, of its answers, of its disk, or of the network between the processes. The checkpoints of
some runs are in an object store, which may reject requests, cut connections, or lose what it has stored. Whatever
kills the command that a person has typed is followed by the same command line, as a scheduler or a container's restart
policy does it. In the end there must be one recorded run, its parameters those of a run without losses bit for bit,
and every point of every metric logged once.
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

from runner.host.stores.urls import ObjectPath, Place
from tests import forks, stores
from tests.campaign import faults, losing_store
from tests.campaign.base import Case
from tests.campaign.faults import DISK, ROOM, Fault
from tests.campaign.left import Left, differences, left_in
from tests.campaign.losing_store import PART, Store
from tests.campaign.own_network import lose_network, own_network
from tests.campaign.processes import Config
from tests.object_server import CUTS, THROTTLES, UNAVAILABLE

CASES = 60
NAME = "exp1"
# The loopback interface of the processes and of their store is down for a while.
NETWORK = "network"
KINDS = {
    "folder": {"SIGKILL": 5, "SIGSTOP": 2, DISK: 1, ROOM: 1, NETWORK: 2},
    "store": {"SIGKILL": 5, "SIGSTOP": 1, NETWORK: 2, UNAVAILABLE: 2, THROTTLES: 1, CUTS: 2, PART: 2},
}
_OF_ALL = (NETWORK, *losing_store.KINDS)
_STORED = 0.6  # share of the cases
# So short that connections go on after it, or so long that the processes count each other as lost.
_NETWORK_S = ((0.5, 3.0), (18.0, 24.0))
_MOST_LOSSES = 3
_LONGEST_S = 420.0
_POLL_S = 0.02
# More than the losses of a case: the run itself must not give up.
_RESTARTS = 20
STARTERS = ("launcher", "supervisor")


@dataclass(frozen=True)
class Wide(Config):
    """A network whose arrays are so large that each process uploads its share in parts, over fewer epochs."""

    def overrides(self) -> list[str]:
        """Returns the command line, but for the cluster."""
        replaced = ("model.hidden=", "trainer.epochs=")
        kept = [one for one in super().overrides() if not one.startswith(replaced)]
        return [*kept, "model.hidden=[2048,2048]", "trainer.epochs=2"]

    def __str__(self) -> str:
        """Returns its parts."""
        return f"wide {super().__str__()}"


# As many as leave no common factor with the starters.
CONFIGS = (Config("jax", 8), Config("jax", 2), Wide("jax", 2))


@dataclass(frozen=True)
class Loss:
    """One loss.

    Attributes:
      kind: of `KINDS`.
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
        what = self.kind if self.kind in _OF_ALL else f"{self.kind} of {who}"
        return f"{what} {self.delay:.2f} s after {self.saves} saves"


@dataclass(frozen=True)
class Plan:
    """What happens to a run.

    Attributes:
      config: that is trained.
      starter: `launcher` or `supervisor`, which starts the run again.
      losses: in their order.
      is_stored: whether its checkpoints are in an object store.
    """

    config: Config
    starter: str
    losses: tuple[Loss, ...]
    is_stored: bool = False

    def __str__(self) -> str:
        """Returns it in words."""
        where = " into a store" if self.is_stored else ""
        return f"{self.config} by the {self.starter}{where}: {', then '.join(map(str, self.losses))}"

    def lacks(self, store: Store | None, *, has_network: bool) -> str:
        """Returns in words what it needs and this machine does not have; empty: nothing."""
        if self.is_stored and store is None:
            return "needs moto: see tests/object_server.py"
        if not has_network and any(loss.kind == NETWORK for loss in self.losses):
            return "needs the right to make a network namespace"
        return ""


def drawn(number: int, seed: int) -> tuple[Plan, random.Random]:
    """Returns a case, and what decides the rest."""
    draw = random.Random(f"{seed} {number}")
    config = CONFIGS[number % len(CONFIGS)]
    is_wide = isinstance(config, Wide)
    is_stored = draw.random() < _STORED or is_wide
    weights = KINDS["store" if is_stored else "folder"]
    losses: list[Loss] = []
    for position in range(draw.randint(1, _MOST_LOSSES)):
        kind = draw.choices(list(weights), list(weights.values()))[0]
        if is_wide and position == 0:
            kind = PART
        # A starter that is suspended for good would be ended by nobody, and its disk is that of its processes.
        starter = kind == "SIGKILL" and draw.random() < 0.3
        most_saves = 2 if is_wide else 4
        losses.append(Loss(kind, starter, draw.randint(1, most_saves), round(draw.uniform(0.0, 0.5), 2)))
    return Plan(config, STARTERS[number % len(STARTERS)], tuple(losses), is_stored), draw


class Run:
    """A named run in a folder of its own, and the command that starts it."""

    def __init__(self, folder: Path, config: Config, starter: str, store: Store | None = None) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.uri = stores.store_in(folder)
        self.store = store
        self._config = config
        self._checkpoints: Place = folder / "checkpoints" if store is None else store.folder(folder.name)
        cluster = ["cluster=local", f"cluster.processes={config.processes}"]
        self._command = [
            *(sys.executable, "-m", "runner", *config.overrides(), *cluster, "resume=auto", f"name={NAME}"),
            *(f"tracking.uri={self.uri}", f"trainer.checkpoint.folder={self._checkpoints}"),
            *(f"hydra.run.dir={folder}/run-1", f"cluster.restarts={_RESTARTS}"),
        ]
        if starter == "supervisor":
            self._command = [sys.executable, "-m", "runner.supervise", "--", *self._command]

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the command; what it prints is added to `out` and `err`."""
        environment = os.environ | {"XLA_FLAGS": forks.SLOW_CODE}
        if self.store is not None:
            environment |= self.store.environment(self.folder)
        library = forks.JAX if self._config.engine == "jax" else forks.TENSORFLOW
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            return forks.Popen(
                self._command, library=library, cwd=self.folder, env=environment, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def saves(self) -> int:
        """Returns the step of the newest checkpoint; 0: there is none."""
        if isinstance(self._checkpoints, ObjectPath):
            return losing_store.newest(self._checkpoints / NAME)
        steps = [int(path.name[5:14]) for path in self.folder.glob("checkpoints/*/step-?????????")]
        return max(steps, default=0)

    def left(self) -> Left:
        """Returns what the run has left."""
        return left_in(self.folder, self.uri, NAME, self._checkpoints)


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
    if loss.kind == NETWORK:
        lose_network(draw.uniform(*draw.choice(_NETWORK_S)))
        return True
    if run.store is not None and loss.kind in losing_store.KINDS:
        run.store.inflict(loss.kind, draw)
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


def tried(plan: Plan, draw: random.Random, folder: Path, references: References, store: Store | None = None) -> Case:
    """Runs with losses, and compares what is left with a run without them."""
    wrong: list[str] = []
    note = ""
    try:
        whole = references.of(plan.config)
        run = Run(folder, plan.config, plan.starter, store if plan.is_stored else None)
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
    with own_network() as has_network, losing_store.losing_store(folder) as store:
        for number in range(first, first + cases):
            plan, draw = drawn(number, seed)
            lacking = plan.lacks(store, has_network=has_network)
            if lacking:
                yield Case(str(plan), held=True, note=f"skipped: {lacking}")
                continue
            if store is not None:
                store.calm()
            case = tried(plan, draw, folder / f"case-{number}", references, store)
            alone = f"; alone: python -m tests.campaign survive --seed {seed} --first {number} --cases 1"
            yield case if case.held else replace(case, note=case.note + alone)
