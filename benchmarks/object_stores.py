"""What checkpoints in an object store cost: a step's time with them, compared with a step's with local checkpoints.

    python -m benchmarks.object_stores                     # moto's server, see tests/object_server.py
    python -m benchmarks.object_stores --control           # also a second training with local checkpoints
    AWS_ENDPOINT_URL=... python -m benchmarks.object_stores --url s3://bucket/bench

Trainings with the same config take turns of half a second (`benchmarks.turns`). A round has turns of each training
for the steps of one save, so 6 s of each by default. The tables compare the trainings within a round:

- wall: time of a step, with everything that the training waits for. On a busy machine the other processes are a part
  of it, also those that the server drives away from its CPU. So this process saves as much in the store during the
  turns of the other trainings: the server has similar work in all turns. Quiet rounds, in which the trainings had
  their CPUs for themselves, have a table of their own.
- CPU: time of a step on all threads of the process, uploads included. The trainings get all CPUs but the last one, to
  which the server is bound, as a store is another machine. If that leaves them one CPU, it is fully used. Then all
  work of an upload delays steps, and this is nearly the time that a step would take without other processes.
- wait: the time for which the training itself waits at a save, to copy the state from the devices.

A median is that of the rounds' ratios. A total is the ratio of the sums, in which rare work counts, too. The intervals
are bootstrapped over the rounds and cover 95%. They leave out that two processes with the same config may differ, too
(`--control`), so repeat the command. The record of attempts is renewed by the clock, so two trainings
that take turns renew them twice as often per step as one that never stops. Checkpoints stay at `--url`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import ContenderError
from benchmarks.turns import Block, Trainee
from runner.checkpoint import storage
from runner.checkpoint.places import place
from runner.checkpoint.storage import Content
from runner.engine.base import Shard
from tests.object_server import BUCKET, Proxy, moto

Values = NDArray[np.float64]

# A state of 8 MB and steps of about 10 ms on one core.
_CONFIG = (
    "engine=jax",
    "mesh=single",
    "model=mlp",
    "model.hidden=[512,512]",
    "dataset=mnist",
    "trainer.epochs=null",
    "trainer.steps_per_call=5",
)

# The trainings end with the benchmark, and evaluate nothing before.
_LENGTH = ("trainer.steps=1000000", "trainer.evaluate_every_steps=1000000")
_QUIET = ("tracking=none", "trainer.progress=none")

# Steps of a turn from which a save is taken. The upload has the rest of the turn, and the turns after it.
_BEFORE_SAVE = 10

# Steps of a turn: half a second, because the speed of a shared machine changes within seconds.
_TURN = 50

# Of the least seconds per CPU second of a round: rounds above it met other load. Fewer quiet rounds say nothing.
_QUIET_SHARE = 1.1
_FEWEST_ROUNDS = 10

# Checkpoints that are kept, as by default.
_KEPT = 2

_RESAMPLES = 2000

LOCAL, STORE, CONTROL = "local", "store", "local again"


@dataclass
class Measured:
    """The blocks of one training.

    Attributes:
      blocks: one per round, the sum of its turns.
      server: CPU seconds of the server in the turns of each.
    """

    blocks: list[Block] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def per_step(self, seconds: str) -> Values:
        """Returns seconds per step of each round; `seconds` is a field of `Block`."""
        return np.array([getattr(block, seconds) / block.steps for block in self.blocks])

    def of(self, rounds: Iterable[int]) -> Measured:
        """Returns the blocks of some rounds."""
        chosen = list(rounds)
        return Measured([self.blocks[index] for index in chosen], [self.server[index] for index in chosen])


def quiet_rounds(measured: Mapping[str, Measured]) -> list[int]:
    """Returns the rounds in which no training waited long for a CPU, whichever training it was."""
    walls = sum(one.per_step("wall") for one in measured.values())
    cpus = sum(one.per_step("cpu") for one in measured.values())
    waited = np.asarray(walls / cpus)
    return [int(index) for index in np.flatnonzero(waited <= _QUIET_SHARE * waited.min())]


def interval(statistic: Callable[..., float], *values: Values) -> tuple[float, float]:
    """Returns the bootstrapped interval of a statistic that covers 95%.

    Args:
      statistic: of the values.
      values: each with one value per round; a resample takes the same rounds of all.
    """
    generator = np.random.default_rng(0)
    rounds = len(values[0])
    found: list[float] = []
    for _ in range(_RESAMPLES):
        taken = generator.integers(0, rounds, rounds)
        found.append(statistic(*(array[taken] for array in values)))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def median_ratio(values: Values, others: Values) -> float:
    """Returns the median of the ratios of two values of a round."""
    return float(np.median(values / others))


def total_ratio(values: Values, others: Values) -> float:
    """Returns the ratio of the sums."""
    return float(values.sum() / others.sum())


@contextmanager
def _bound(cpus: set[int]) -> Iterator[None]:
    """Binds this process to CPUs for the block, and so the processes that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class _Store:
    """A store.

    Attributes:
      url: folder for the runs.
      env: what its clients need in their environment.
      cpus: of the trainings.
      server: the process, if it is ours.
      server_cpus: of that process.
    """

    url: str
    env: Mapping[str, str]
    cpus: set[int]
    server: psutil.Process | None = None
    server_cpus: set[int] = field(default_factory=set)

    def cpu(self) -> float:
        """Returns the CPU seconds of the server so far; 0 if it is not ours."""
        if self.server is None:
            return 0.0
        times = self.server.cpu_times()
        return float(times.user + times.system)


@contextmanager
def _own_store(*, shared: bool) -> Iterator[_Store]:
    """Runs moto's server for the block, on a CPU of its own if there are two and they are not shared."""
    cpus = os.sched_getaffinity(0)
    last = {max(cpus)}
    if shared or len(cpus) == 1:
        last = cpus
    with ExitStack() as stack:
        with _bound(last):
            # A busy machine shares its CPUs among sessions. The server must not take the trainings' share.
            port = stack.enter_context(moto(own_session=True))
        (server,) = psutil.Process().children()
        env = Proxy(0, port=port).environment()
        yield _Store(f"s3://{BUCKET}/bench", env, cpus - last or cpus, server, last)


class _OwnSaves:
    """Saves of this process, of the same size as those of the trainings and with the same requests."""

    def __init__(self, store: _Store, local: Path) -> None:
        """Connects to a store.

        Args:
          store: whose server is ours.
          local: folder of a training with local checkpoints, whose size these have.
        """
        os.environ.update(store.env)
        self._cpus = store.server_cpus
        self._local = local
        self._folder = place(f"{store.url}/own-saves")
        self._steps = 0
        self._thread = threading.Thread()

    def begin(self) -> None:
        """Begins a save in a thread, if there is a local checkpoint."""
        sizes = [path.stat().st_size for path in self._local.rglob("arrays-*.safetensors")]
        if sizes:
            self._thread = threading.Thread(target=self._save, args=(max(sizes),))
            self._thread.start()

    def wait(self) -> None:
        """Waits until the save has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _save(self, size: int) -> None:
        # Linux binds a thread and what it starts. The server's CPUs, so that the trainings keep theirs.
        os.sched_setaffinity(0, self._cpus)
        self._steps += 1
        state = np.zeros(size, np.uint8)
        shard = Shard(start=(0,), array=state, whole=state.shape)
        storage.write(self._folder, Content(self._steps, {"state": [shard]}, {}, {}))
        storage.remove(self._folder, self._steps - _KEPT)


def _overrides(name: str, scratch: Path, options: argparse.Namespace, store: _Store) -> list[str]:
    """Returns the overrides of a training."""
    folder = scratch / name.replace(" ", "-")
    checkpoints = str(folder) if name in (LOCAL, CONTROL) else f"{store.url}/{folder.name}"
    saving = f"trainer.checkpoint.every_steps={options.every}"
    places = [f"hydra.run.dir={json.dumps(str(folder))}", f"trainer.checkpoint.folder={json.dumps(checkpoints)}"]
    return [*_CONFIG, *_LENGTH, *_QUIET, "trainer.checkpoint.every_minutes=null", saving, *places]


def _take_turns(
    trainees: Mapping[str, Trainee], count: int, store: _Store, own_saves: _OwnSaves | None
) -> dict[str, tuple[Block, float]]:
    """Returns the sum of the turns of each training in one round, and the CPU seconds of the server in them."""
    blocks = {name: Block(0, 0.0, 0.0, 0.0) for name in trainees}
    server = dict.fromkeys(trainees, 0.0)
    order = list(trainees)
    for turn in range(count):
        for name in order:
            before = store.cpu()
            # The first turn of a round is the one in which the trainings save.
            if own_saves is not None and turn == 0 and name != STORE:
                own_saves.begin()
            blocks[name] += trainees[name].take_turn()
            if own_saves is not None:
                own_saves.wait()
            server[name] += store.cpu() - before
        # Each is first equally often, so that a machine that slows down favors none.
        order.append(order.pop(0))
    return {name: (blocks[name], server[name]) for name in trainees}


def measure(names: list[str], options: argparse.Namespace, overrides: list[str], store: _Store) -> dict[str, Measured]:
    """Has the trainings take turns for `options.minutes`; raises ContenderError if one failed."""
    measured = {name: Measured() for name in names}
    env = {**os.environ, **store.env}
    with tempfile.TemporaryDirectory(prefix="object-stores-") as scratch, ExitStack() as stack:
        trainees: dict[str, Trainee] = {}
        for name in names:
            of_training = [*_overrides(name, Path(scratch), options, store), *overrides]
            with _bound(store.cpus):
                trainees[name] = Trainee(of_training, env, _TURN, options.every - _BEFORE_SAVE)
            stack.callback(trainees[name].end)
        own_saves = None if store.server is None else _OwnSaves(store, Path(scratch) / LOCAL)
        # The first round is not measured: first requests of a connection, and no local checkpoint yet.
        _take_turns(trainees, options.every // _TURN, store, own_saves)
        deadline = time.monotonic() + 60.0 * options.minutes
        while not measured[LOCAL].blocks or time.monotonic() < deadline:
            for name, (block, server) in _take_turns(trainees, options.every // _TURN, store, own_saves).items():
                measured[name].blocks.append(block)
                measured[name].server.append(server)
    return measured


def _percent(statistic: Callable[..., float], values: Values, others: Values) -> str:
    """Returns by how much values are larger than others, with the interval."""
    ratio = statistic(values, others)
    low, high = interval(statistic, values, others)
    return f"{ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


def _milliseconds(values: Values) -> str:
    """Returns the mean of seconds, with the interval."""
    low, high = interval(np.mean, values)
    return f"{1e3 * np.mean(values):+.0f} ({1e3 * low:+.0f} to {1e3 * high:+.0f})"


def _print_steps(console: Console, measured: Mapping[str, Measured]) -> None:
    """Prints what a step of each training takes, and what it waits for."""
    table = Table("checkpoints", "wall ms", "CPU ms", "wait ms per round", "share", "server's CPU ms per round")
    for name, one in measured.items():
        wall = one.per_step("wall")
        cpu = one.per_step("cpu")
        saving = one.per_step("saving")
        waits = [block.saving for block in one.blocks]
        table.add_row(
            name,
            f"{1e3 * np.median(wall):.2f}",
            f"{1e3 * np.median(cpu):.2f}",
            f"{1e3 * np.median(waits):.0f}",
            f"{saving.sum() / wall.sum():.2%}",
            f"{1e3 * np.mean(one.server):.0f}",
        )
    console.print(table)


def _print_ratios(console: Console, measured: Mapping[str, Measured]) -> None:
    """Prints how much longer a step takes than one with local checkpoints."""
    local = measured[LOCAL]
    table = Table("compared with local", "median (95% interval)", "total (95% interval)", "ms per round")
    for name, one in measured.items():
        if name == LOCAL:
            continue
        steps = np.median([block.steps for block in one.blocks])
        for label, seconds in (("wall", "wall"), ("CPU", "cpu")):
            values = one.per_step(seconds)
            others = local.per_step(seconds)
            table.add_row(
                f"{name}, {label}",
                _percent(median_ratio, values, others),
                _percent(total_ratio, values, others),
                _milliseconds(steps * (values - others)),
            )
    console.print(table)


def main() -> int:
    """Prints the tables; the exit code is 1 if a training failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="folder in an object store; default: a server that this starts")
    parser.add_argument("--minutes", type=float, default=6.0, help="length of the measurement, without the start")
    parser.add_argument("--every", type=int, default=12 * _TURN, help=f"steps between saves, a multiple of {_TURN}")
    parser.add_argument("--control", action="store_true", help="measure local checkpoints twice")
    parser.add_argument("--shared", action="store_true", help="let the server use the CPUs of the trainings")
    parser.add_argument("--out", type=Path, help="file for the figures of all rounds")
    options, overrides = parser.parse_known_args()
    if options.every <= 0 or options.every % _TURN:
        parser.error(f"--every={options.every}: must be a multiple of {_TURN}")
    console = Console(highlight=False)
    names = [LOCAL, STORE]
    if options.control:
        names.append(CONTROL)
    with ExitStack() as stack:
        if options.url:
            store = _Store(options.url, {}, os.sched_getaffinity(0))
        else:
            store = stack.enter_context(_own_store(shared=options.shared))
        try:
            measured = measure(names, options, overrides, store)
        except ContenderError as error:
            console.print(str(error), markup=False)
            return 1
    rounds = len(measured[LOCAL].blocks)
    console.print(f"{rounds} rounds of {options.every} steps and one save; trainings on CPUs {sorted(store.cpus)}")
    _print_steps(console, measured)
    _print_ratios(console, measured)
    quiet = quiet_rounds(measured)
    if _FEWEST_ROUNDS <= len(quiet) < rounds:
        console.print(f"the {len(quiet)} quiet rounds:")
        _print_ratios(console, {name: one.of(quiet) for name, one in measured.items()})
    if options.out:
        content: dict[str, list[dict[str, float]]] = {}
        for name, one in measured.items():
            pairs = zip(one.blocks, one.server, strict=True)
            content[name] = [{**vars(block), "server": server} for block, server in pairs]
        options.out.write_text(json.dumps(content) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
