"""Breaks engines in many ways, and sees that a verification says so, and names the variable.

`python -m tests.campaign mutations [--sample N] [--engine E] [--network N] [--setting S] [--mutation REGEX]`

A scene is a network, an engine and a setting, see `tests.campaign.networks`. Its single device runs once, untouched.
Its mesh runs sound, which must be verified, and then with each mutation, which must not: the verdict is "mismatch" or
"inconclusive", and names the variable that the mutation is aimed at. A mutation whose run is the same to the last bit
as the sound one changes nothing, and is not counted.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import Array
from runner.host import paths
from runner.layout import mesh
from runner.plan.checks.run import convert
from runner.verify import record as check
from runner.verify.children import SideResult
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request
from tests import forks
from tests.campaign import networks
from tests.campaign.base import Case
from tests.campaign.mutations_table import MUTATIONS, Mutation
from tests.campaign.mutations_worker import JOBS, Job

_REFERENCE = Job(0, "reference")
_SOUND, _AGAIN = "nothing broken", "nothing broken, after all others"
_LONGEST_S = 400.0  # that a side may take


@dataclass(frozen=True)
class Try:
    """One run of a mesh, and what must come of it.

    Attributes:
      name: of the mutation, or of what is sound.
      job: what is run.
      named: regular expression of a variable that must be named; empty: whichever.
      sound: whether it must be verified.
    """

    name: str
    job: Job
    named: str = ""
    sound: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a try.

    Attributes:
      scene: engine, network and setting in words.
      tried: what was run.
      outcome: `verified`, `inconclusive`, `mismatch`, `equivalent` (the same as the sound run to the last bit), or
        how it failed.
      first: variables of the checks that failed nearest to the error, see `culprits`.
      named: all variables that the verdict names.
      seconds: that the mesh's side took.
    """

    scene: str
    tried: Try
    outcome: str
    first: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        """Tells whether it is as it must be."""
        if self.tried.sound:
            return self.outcome == "verified"
        named = self.first if self.tried.job.path else self.named
        is_named = not self.tried.named or any(re.fullmatch(self.tried.named, name) for name in named)
        return self.outcome == "equivalent" or (self.outcome in ("mismatch", "inconclusive") and is_named)

    def case(self) -> Case:
        """Returns the campaign's case."""
        aimed = f" ({self.tried.job.path})" if self.tried.job.path else ""
        shown = ", ".join(self.first[:4]) + (", ..." if len(self.first) > 4 else "")
        return Case(
            f"{self.scene}: {self.tried.name}{aimed}", self.held, f"{self.outcome}: {shown}  {self.seconds:.0f} s"
        )


@dataclass
class Options:
    """What the command line chooses; empty: all.

    Attributes:
      engine: name of the only engine.
      network: likewise.
      setting: likewise.
      mutation: regular expression that is found in the names of mutations.
    """

    engine: str = ""
    network: str = ""
    setting: str = ""
    mutation: str = ""


class Scene:
    """A network, an engine and a setting, which are verified; its files and what they gave."""

    def __init__(self, network: str, engine: str, setting: str, folder: Path) -> None:
        """Takes names of `networks.NETWORKS`, an engine and `networks.SETTINGS`, and an empty folder."""
        self._network, self._engine, self._setting, self._folder = network, engine, setting, folder
        self._said: dict[str, SideResult] = {}
        self._sound: dict[str, Array] = {}
        self._name = f"{engine} {network} {setting}"

    def results(self, config: RunConfig, options: Options, cases: int, seed: int) -> Iterator[Result]:
        """Runs the single device, then the mesh for each try, and yields what came of it.

        Args:
          config: of the scene.
          options: which mutations are tried.
          cases: how many are drawn of them; 0: all.
          seed: of the draw.
        """
        write_request(
            self._folder, make_request(config, loading.load(config.dataset, config.trainer.seed, task=config.task))
        )
        for _, said in self._run([_REFERENCE]):
            self._said["reference"] = said["said"]
        if self._said.get("reference", {}).get("kind") != "done":
            log = (self._folder / "log").read_text()[-500:]
            yield Result(self._name, Try("the reference", _REFERENCE), f"failed: {self._said.get('reference', log)}")
            return
        broken = [each for each in MUTATIONS if self._fits(each) and re.search(options.mutation, each.name)]
        if cases < len(broken) and cases:
            drawn = random.Random(f"{seed} {self._name}").sample(range(len(broken)), cases)
            broken = [broken[number] for number in sorted(drawn)]
        tries = {each.job.number: each for each in self._tries(broken)}
        while tries:
            for number, line in self._run([each.job for each in tries.values()]):
                yield self._judged(config, tries.pop(number), line)
            if tries:  # the process died of the first that is left
                first = next(iter(tries.values()))
                yield Result(self._name, first, "failed: the process ended")
                del tries[first.job.number]

    def _fits(self, mutation: Mutation) -> bool:
        return self._network in mutation.networks and self._setting in mutation.settings

    def _tries(self, broken: Sequence[Mutation]) -> Iterator[Try]:
        variables = [key for key in read_arrays(self._folder / "reference.npz") if key.startswith("gradient/")]
        gradients = [key.removeprefix("gradient/") for key in variables]
        yield Try(_SOUND, Job(1), sound=True)
        for number, mutation in enumerate(broken, start=2):
            found = [path for path in gradients if re.fullmatch(mutation.path, path)]
            assert found or not mutation.path, f"{self._name} has no {mutation.path}"
            path = found[0] if mutation.path else ""
            yield Try(mutation.name, Job(number, mutation=mutation.name, path=path), mutation.named or path)
        if broken:
            yield Try(_AGAIN, Job(len(broken) + 2), sound=True)

    def _judged(self, config: RunConfig, tried: Try, line: dict[str, Any]) -> Result:
        folder, said, seconds = tried.job.folder(self._folder), line["said"], line["seconds"]
        if said["kind"] != "done":
            return Result(self._name, tried, f"{said['kind']}: {said['text']}", seconds=seconds)
        try:
            results = {**self._said, "mesh": said}
            axes = mesh.describe(config.mesh.axes)
            found = check.compare_sides(config.engine, folder, results, axes, config.verify.steps)
            outcome, first, named = found.verdict, culprits(found), tuple(found.suspects)
            arrays = read_arrays(folder / "mesh.npz")
            if tried.sound:
                self._sound = arrays
            elif outcome == "verified" and self._is_same(arrays):
                outcome = "equivalent"
        finally:
            shutil.rmtree(folder)
        return Result(self._name, tried, outcome, first, named, seconds)

    def _is_same(self, found: dict[str, Array]) -> bool:
        return set(self._sound) == set(found) and all(
            np.array_equal(self._sound[key], value, equal_nan=True) for key, value in found.items()
        )

    def _run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Runs jobs in one process, and yields each one's number and what the process tells of it."""
        (self._folder / JOBS).write_text(json.dumps([asdict(job) for job in jobs]))
        command = [sys.executable, "-m", "tests.campaign.mutations_worker", str(self._folder)]
        library = forks.JAX if self._engine == "jax" else forks.TENSORFLOW
        environment = os.environ | {"PYTHONPATH": str(forks.ROOT), "XLA_FLAGS": forks.SLOW_CODE}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (
            (self._folder / "log").open("a") as log,
            forks.Popen(command, library=library, cwd=forks.ROOT, env=environment, stderr=log, **streams) as process,
        ):
            assert process.stdout is not None
            watch = threading.Timer(_LONGEST_S, process.kill)
            watch.start()
            try:
                for text in process.stdout:
                    if text.startswith('{"number"'):
                        watch.cancel()
                        line = json.loads(text)
                        yield line["number"], line
                        watch = threading.Timer(_LONGEST_S, process.kill)
                        watch.start()
            finally:
                watch.cancel()
                process.kill()


def culprits(found: Verification) -> tuple[str, ...]:
    """Returns the variables of the checks that failed nearest to where an error comes from, in the verdict's order.

    A wrong gradient moves every variable in the end: what counts is whose gradient is wrong, and where none is, what a
    step makes wrong of what it is given.
    """
    failed = [each for each in found.checks if not each.passed and each.variable]
    for kinds in (("gradient", "point"), ("update",)):
        first = {each.variable for each in failed if each.kind in kinds}
        if first:
            return tuple(name for name in found.suspects if name in first)
    return tuple(found.suspects)


def config_of(network: str, engine: str, setting: str) -> RunConfig:
    """Returns the checked config of a scene."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        return convert(compose("config", overrides=networks.overrides(network, engine, setting)))


def results(cases: int, seed: int, folder: Path, options: Options) -> Iterator[Result]:
    """Tries mutations, one scene after another, and yields what came of each.

    Args:
      cases: how many of each scene, drawn by the seed, beside the sound runs; 0: all.
      seed: of the draw.
      folder: an empty one.
      options: what is tried.
    """
    wanted = (options.network, options.engine, options.setting)
    for scene in networks.scenes():
        if any(want and want != has for want, has in zip(wanted, scene, strict=True)):
            continue
        place = folder / "-".join(scene)
        place.mkdir()
        yield from Scene(*scene, place).results(config_of(*scene), options, cases, seed)
        shutil.rmtree(place)


def cases(found: Iterable[Result], kept: list[Result]) -> Iterator[Case]:
    """Yields the case of each result, and keeps the result for `report`."""
    for result in found:
        kept.append(result)
        yield result.case()


def report(found: Sequence[Result], out: TextIO) -> None:
    """Prints a line a mutation, and the totals."""
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for each in found:
        outcome = each.outcome if each.outcome in ("verified", "inconclusive", "mismatch", "equivalent") else "failed"
        rows[each.tried.name][outcome] += 1
        rows[each.tried.name]["amiss"] += not each.held
    columns = ("mismatch", "inconclusive", "equivalent", "verified", "failed", "amiss")
    print(f"\n{'mutation':44}" + "".join(f"{column:>12}" for column in columns), file=out)
    for name, row in rows.items():
        print(f"{name:44}" + "".join(f"{row[column] or '':>12}" for column in columns), file=out)
    broken = [each for each in found if not each.tried.sound]
    counted = [each for each in broken if each.outcome != "equivalent"]
    caught = sum(each.held for each in counted)
    sound = [each for each in found if each.tried.sound]
    print(
        f"{len({each.tried.name for each in counted})} ways to break an engine, tried {len(counted)} times: "
        f"{caught} caught, {len(counted) - caught} slipped through; {len(broken) - len(counted)} changed nothing, "
        f"to the last bit; sound engines: {sum(each.held for each in sound)} of {len(sound)} verified",
        file=out,
    )
