"""Kills training runs at moments of all kinds and resumes them: each must end as the run that was never killed.

A case is a config and the moments at which its processes die: in the start, while the store is written, in the middle
of a checkpoint, while the best one is noted or old ones are removed, while results are recorded; by SIGKILL at once or
a while after SIGTERM or SIGINT. Final parameters, slots and history are compared bit for bit, and what is recorded.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from tests import forks, stores
from tests.campaign import dying
from tests.campaign.base import Case
from tests.campaign.dying import Moment
from tests.campaign.left import Left, differences, left_in, rounded_differences

CASES = 100
_AT_A_TIME = 2
_LONGEST_S = 300.0
_START_S = 4.0  # what a start takes, about
_CASES_A_CONFIG = 8

BASE = (
    "dataset=digits",
    "dataset.batch_size=128",
    "trainer.epochs=4",
    "trainer.log_every_steps=2",
    "trainer.steps_per_call=3",
    "trainer.checkpoint.every_steps=7",
    "trainer.log_model=false",
    "trainer.progress=none",
)
JAX = ("engine=jax", "engine.compilation_cache=false")  # the cache is shared by all runs
ENGINES = {
    "keras_dtensor": ("engine=keras_dtensor", "model.hidden=[24]"),
    "core_dtensor": ("engine=core_dtensor", "model=mlp_core", "model.hidden=[24,16]"),
    "jax": (*JAX, "model.hidden=[24]"),
}
MESHES = {
    "single": ("mesh=single",),
    "batch2": ("mesh=batch2",),
    "batch4_model2": ("mesh=batch4_model2", "layout=megatron"),
}
FEATURES = {
    "cosine": ("optimizer.schedule.name=cosine", "optimizer.schedule.warmup_steps=5"),
    "momentum": ("optimizer=sgd",),
    "stopping": (
        "trainer.epochs=12",
        "trainer.early_stopping.metric=eval/loss",
        "trainer.early_stopping.patience=2",
        "trainer.checkpoint.best=eval/loss",
        "trainer.limit_train_batches=6",
        "optimizer.learning_rate=0.3",
    ),
    "steps": (
        "trainer.epochs=null",
        "trainer.steps=40",
        "trainer.evaluate_every_steps=9",
        "trainer.early_stopping.metric=eval/loss",
        "optimizer.schedule.name=cosine_restarts",
        "optimizer.schedule.decay_steps=7",
        "optimizer.schedule.plateau.metric=eval/loss",
        "optimizer.schedule.plateau.patience=1",
        "optimizer.schedule.plateau.min_delta=0.1",
    ),
    "ema": ("optimizer.ema.decay=0.9", "trainer.checkpoint.keep=1"),
    "accumulate": ("trainer.accumulate_steps=2", "trainer.checkpoint.every_minutes=0.01"),
    "restore": (
        "optimizer=sgd",
        f"optimizer.learning_rate={2.0**100}",
        "trainer.on_nan=restore",
        f"trainer.nan_rate_factor={2.0**-52}",
    ),
    "pad": ("dataset.remainder=pad", "trainer.checkpoint.every_steps=3"),
    "elsewhere": ("optimizer=sgd", "model=mlp_core", "model.hidden=[24,16]"),
}
# Where a run goes on that moves.
PLACES = (
    (*MESHES["batch4_model2"],),
    (*MESHES["single"], "layout=replicated", "engine=core_dtensor"),
    (*MESHES["batch2"], "layout=replicated", *JAX),
    (*MESHES["single"], "layout=replicated", "engine=keras_dtensor"),
)
_ALL_DONE = ("the run has done all of its", "the run has ended by")  # killed when all was recorded
_RTOL, _ATOL = 1e-3, 1e-5  # of what is computed in another order from some step on


@dataclass(frozen=True)
class Config:
    """What is trained.

    Attributes:
      engine: one of `ENGINES`.
      mesh: one of `MESHES`.
      feature: one of `FEATURES`.
    """

    engine: str
    mesh: str
    feature: str

    def __str__(self) -> str:
        """Returns the names of its three parts."""
        return f"{self.engine} {self.mesh} {self.feature}"

    @property
    def moves(self) -> bool:
        """Whether the run goes on elsewhere when it was killed."""
        return self.feature == "elsewhere"

    def overrides(self) -> list[str]:
        """Returns the command line."""
        given = [*BASE, *ENGINES[self.engine], *MESHES[self.mesh], *FEATURES[self.feature]]
        return list({one.partition("=")[0]: one for one in given}.values())  # what is given later wins


@dataclass(frozen=True)
class Life:
    """One process of a run.

    Attributes:
      death: when it is killed; None: it goes on to the end.
      elsewhere: overrides by which it goes on with the run on another mesh or engine.
    """

    death: Moment | None
    elsewhere: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns what was typed, and when it died."""
        return " ".join([*self.elsewhere, str(self.death or "to the end")])


@dataclass(frozen=True)
class Whole:
    """A run that was never killed: what it left, and how many events of each kind it saw."""

    left: Left
    counts: dict[str, int]


class Runs:
    """The processes of one run, one after another, in a folder of its own.

    Attributes:
      folder: holds all that they write.
      uri: of the store that they record in.
      moved_at: step of the checkpoint from which one first went on elsewhere.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        folder.mkdir(parents=True)
        self.folder, self.uri = folder, stores.store_in(folder)
        self.moved_at: int | None = None
        self._config, self._lives = config, 0

    def live(self, life: Life) -> bool:
        """Starts the run, or resumes it where it left a checkpoint, and waits for the process's end.

        Returns:
          Whether it was killed; where it was not, the run has done all that it had to.

        Raises:
          RuntimeError: it ended in another way, or not at all.
        """
        self._lives += 1
        steps = [int(path.name.partition("-")[2]) for path in self.folder.glob("checkpoints/*/step-*")]
        elsewhere = life.elsewhere if steps else ()
        if elsewhere and self.moved_at is None:
            self.moved_at = max(steps)
        given = ["resume=latest", *elsewhere] if steps else self._config.overrides()
        places = [
            f"tracking.uri={self.uri}",
            f"trainer.checkpoint.folder={self.folder}/checkpoints",
            f"hydra.run.dir={self.folder}/run-{self._lives}",
        ]
        module = ["tests.campaign.dying", str(self.folder), str(life.death or dying.NEVER), "runner"]
        command = [sys.executable, "-m", *module, *given, *places]
        environment = os.environ | {"XLA_FLAGS": forks.SLOW_CODE}
        library = _library([*self._config.overrides(), *elsewhere])
        try:
            done = forks.run(command, library=library, cwd=forks.ROOT, env=environment, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"process {self._lives} hangs") from None
        if done.returncode == 2 and any(text in done.stderr for text in _ALL_DONE):
            return False
        deadly = _codes(life.death) if life.death is not None else set()
        if done.returncode not in {0, *deadly} or "Traceback" in done.stderr:
            said = " ".join(done.stderr.split())[-600:]
            raise RuntimeError(f"process {self._lives} ended with {done.returncode}: {said}")
        return done.returncode != 0


def _library(overrides: Sequence[str]) -> str:
    engine = [one for one in overrides if one.startswith("engine=")][-1]
    return forks.JAX if engine == "engine=jax" else forks.TENSORFLOW


def _codes(moment: Moment) -> set[int]:
    """Returns how a process may end at a moment: by a signal, or in good order after one."""
    number = dying.number_of(moment.signal)
    return {-number, 128 + number, *([] if not moment.delay else [-dying.number_of("SIGALRM")])}


class References:
    """The runs that were never killed, one a config, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[Config, Whole | RuntimeError]()
        self._locks, self._lock = dict[Config, Lock](), Lock()

    def of(self, config: Config) -> Whole:
        """Returns what a config's run leaves where it is not killed."""
        with self._lock:
            lock = self._locks.setdefault(config, Lock())
        with lock:
            if config not in self._made:
                self._made[config] = self._run(config)
            made = self._made[config]
        if isinstance(made, RuntimeError):
            raise made
        return made

    def _run(self, config: Config) -> Whole | RuntimeError:
        runs = Runs(self._folder / str(config).replace(" ", "-"), config)
        try:
            runs.live(Life(None))
            left = left_in(runs.folder, runs.uri)
        except RuntimeError as error:
            return RuntimeError(f"never killed, and yet {error}")
        return Whole(left, json.loads((runs.folder / dying.COUNTS).read_text()))


def configs(cases: int, seed: int) -> list[Config]:
    """Returns the configs of a campaign: every engine and every feature in turn, as far as there are cases."""
    draw = random.Random(seed)
    engines, features = list(ENGINES), list(FEATURES)
    draw.shuffle(engines)
    draw.shuffle(features)
    count = max(1, min(len(ENGINES) * len(FEATURES), -(-cases // _CASES_A_CONFIG)))
    # Each round of the features begins with another engine, so that all pairs come, whatever their numbers.
    pairs = [(engines[(i + i // len(features)) % len(engines)], features[i % len(features)]) for i in range(count)]
    return [Config(engine, draw.choices(list(MESHES), (4, 4, 1))[0], feature) for engine, feature in pairs]


def lives(draw: random.Random, config: Config, counts: dict[str, int]) -> list[Life]:
    """Draws when the processes of a run die, one after another, and where the next go on; the last one lives.

    Args:
      draw: decides.
      config: what is trained.
      counts: how many events of each kind the run sees that is not killed.
    """
    deaths = [_moment(draw, counts, first=i == 0) for i in range(draw.choices((1, 2, 3, 4), (4, 4, 2, 1))[0])]
    places = [draw.choice(PLACES) if config.moves and i else () for i in range(len(deaths) + 1)]
    return [Life(*pair) for pair in zip([*deaths, None], places, strict=True)]


def _moment(draw: random.Random, counts: dict[str, int], *, first: bool) -> Moment:
    kind = draw.choice([kind for kind in dying.KINDS if counts.get(kind)])
    if kind == dying.START:
        return Moment(kind, 1, "SIGKILL", round(draw.uniform(0.01, _START_S), 2))
    # A run that goes on sees fewer, and how many commits there are is a matter of time.
    share = 0.5 if not first else 0.7 if kind == dying.STORE else 1.0
    signal = "SIGKILL" if kind == dying.TORN else draw.choices(("SIGKILL", "SIGTERM", "SIGINT"), (6, 1, 1))[0]
    at_once = kind == dying.TORN or (signal == "SIGKILL" and draw.random() < 0.8)
    delay = 0.0 if at_once else round(draw.uniform(0.01, 0.6), 2)
    return Moment(kind, draw.randint(1, math.ceil(share * counts[kind])), signal, delay)


def tried(config: Config, chosen: Sequence[Life], folder: Path, whole: Whole) -> Case:
    """Runs processes one after another until one has done all, and compares what they have left with a whole run."""
    runs, kills = Runs(folder, config), 0
    name = f"{config}: {', '.join(map(str, chosen))}"
    try:
        for life in chosen:
            if not runs.live(life):
                break
            kills += 1
        found = _wrong(config, chosen, runs, whole.left)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        found = [str(error)]
    killed = f"killed {kills} time{'s' * (kills != 1)}"
    if found:
        return Case(name, held=False, note=f"{killed}; {'; '.join(found)[:1500]}")
    shutil.rmtree(folder)
    return Case(name, held=True, note=f"{killed}, {'equal to rounding' if config.moves else 'the same bit for bit'}")


def _wrong(config: Config, chosen: Sequence[Life], runs: Runs, whole: Left) -> list[str]:
    left = left_in(runs.folder, runs.uri)
    asked = sum(life.death is not None and life.death.signal != "SIGKILL" for life in chosen)
    if runs.moved_at is not None:
        return rounded_differences(whole, left, moved_at=runs.moved_at, rtol=_RTOL, atol=_ATOL)
    return differences(whole, left, again=config.feature == "restore", asked=asked, starts=len(chosen))


def _case(number: int, *, seed: int, folder: Path, chosen: Sequence[Config], references: References) -> Case:
    draw = random.Random(f"{seed} {number}")
    config = chosen[number % len(chosen)]
    try:
        whole = references.of(config)
    except RuntimeError as error:
        return Case(str(config), held=False, note=str(error))
    return tried(config, lives(draw, config, whole.counts), folder / f"case-{number + 1}", whole)


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Kills runs, two at a time; see `tests.campaign.base.Campaign`."""
    stores.made()
    one = partial(
        _case, seed=seed, folder=folder, chosen=configs(cases, seed), references=References(folder / "whole")
    )
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        yield from pool.map(one, range(cases))
