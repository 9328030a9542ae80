"""Breaks engines in many ways, and sees that a verification says so, and names the variable.

`python -m tests.campaign mutations [--sample N] [--engine E] [--network N] [--setting S] [--mutation REGEX]`

A scene is a network, an engine and a setting, see `tests.campaign.networks`. Its single device runs once, untouched.
Its mesh runs sound, which must be verified, and then with each mutation, which must not: the verdict is "mismatch" or
"inconclusive", and names the variable that the mutation is aimed at. A mutation whose run is the same to the last bit
as the sound one changes nothing, and is not counted.

The scenes of the setting `resumed` are not verified. Their runs are resumed from checkpoints, sound and with each
mutation, and must, or must not, be bitwise identical to the run that was never interrupted.
"""

from __future__ import annotations

import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from runner.checks.composed import convert
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import Array
from runner.host import paths
from runner.verify import check
from runner.verify.children import SideResult
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request
from tests import forks
from tests.campaign import networks, resumes
from tests.campaign.base import Case
from tests.campaign.mutations_table import ADDED, MUTATIONS, SCALES, Mutation
from tests.campaign.mutations_worker import JOBS, Job

CASES = 0  # all
_WORKERS = 2
_REFERENCE = Job(0, "reference")
_WHOLE = Job(0, "whole")
_SOUND, _SCALED, _AGAIN = "nothing broken", "nothing broken, gradients times 1", "nothing broken, after all others"
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


@dataclass
class Scene:
    """A network, an engine and a setting, which are verified; its files and what they gave.

    Attributes:
      network: of `networks.NETWORKS`.
      engine: name.
      setting: of `networks.SETTINGS`.
      folder: an empty one.
      compared_with: the job that runs first, with whose files all others are compared.
    """

    compared_with: ClassVar[Job] = _REFERENCE

    network: str
    engine: str
    setting: str
    folder: Path
    _said: dict[str, SideResult] = field(default_factory=dict)
    _sound: dict[str, dict[str, Array]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Returns the scene in words."""
        return f"{self.engine} {self.network} {self.setting}"

    def results(self, config: RunConfig, options: Options, cases: int, seed: int) -> Iterator[Result]:
        """Runs the single device, then the mesh for each try, and yields what came of it.

        Args:
          config: of the scene.
          options: which mutations are tried.
          cases: how many are drawn of them; 0: all.
          seed: of the draw.
        """
        write_request(self.folder, make_request(config, loading.load_run(config)))
        for _, said in self._run([self.compared_with]):
            self._said["reference"] = said["said"]
        if self._said.get("reference", {}).get("kind") != "done":
            log = (self.folder / "log").read_text()[-500:]
            yield Result(
                self.name, Try("the reference", self.compared_with), f"failed: {self._said.get('reference', log)}"
            )
            return
        tries = {each.job.number: each for each in self._tries(options)}
        if cases:
            tries = _drawn(tries, cases, f"{seed} {self.name}")
        while tries:
            for number, line in self._run([each.job for each in tries.values()]):
                yield self._judged(config, tries.pop(number), line)
            if tries:  # the process died of the first that is left
                first = next(iter(tries.values()))
                yield Result(self.name, first, "failed: the process ended")
                del tries[first.job.number]

    def gradients(self) -> dict[str, Array]:
        """Returns the single device's first gradients by variable."""
        held = read_arrays(self.folder / "reference.npz")
        return {key.removeprefix("gradient/"): held[key] for key in held if key.startswith("gradient/")}

    def _tries(self, options: Options) -> Iterator[Try]:
        numbers = iter(range(1, 1_000_000))
        gradients = self.gradients()
        yield Try(_SOUND, Job(next(numbers)), sound=True)
        scaled = [one for one in self._scaled(gradients) if re.search(options.mutation, one[0])]
        if scaled:
            yield Try(_SCALED, Job(next(numbers), chosen=(1.0, 0.0, 1.0)), sound=True)
        for name, path, values in scaled:
            yield Try(name, Job(next(numbers), path=path, chosen=values), re.escape(path))
        broken = [each for each in MUTATIONS if self._fits(each) and re.search(options.mutation, each.name)]
        for mutation in broken:
            found = [path for path in gradients if re.fullmatch(mutation.path, path)]
            assert found or not mutation.path, f"{self.name} has no {mutation.path}"
            path = found[0] if mutation.path else ""
            yield Try(mutation.name, Job(next(numbers), mutation=mutation.name, path=path), mutation.named or path)
        if broken:
            yield Try(_AGAIN, Job(next(numbers)), sound=True)

    def _fits(self, mutation: Mutation) -> bool:
        return (
            self.engine in mutation.engines and self.network in mutation.networks and self.setting in mutation.settings
        )

    def _scaled(self, gradients: dict[str, Array]) -> Iterator[tuple[str, str, tuple[float, float, float]]]:
        zero = networks.NETWORKS[self.network].zero
        for path in gradients:
            if zero and re.fullmatch(zero, path):
                layer = [
                    value for other, value in gradients.items() if other.rpartition("/")[0] == path.rpartition("/")[0]
                ]
                size = max(float(np.abs(value).max()) for value in layer)
                yield ADDED.name, path, (1.0, ADDED.added * size, 1.0)
            else:
                for scale in SCALES:
                    yield scale.name, path, (scale.factor, scale.added, scale.second)

    def _judged(self, config: RunConfig, tried: Try, line: dict[str, Any]) -> Result:
        folder, said, seconds = tried.job.folder(self.folder), line["said"], line["seconds"]
        if said["kind"] != "done":
            return Result(self.name, tried, f"{said['kind']}: {said['text']}", seconds=seconds)
        try:
            found = check.compare_sides(config, folder, {**self._said, "mesh": said})
            outcome, first, named = found.verdict, culprits(found), tuple(found.suspects)
            if tried.sound:
                self._sound[tried.name] = read_arrays(folder / "mesh.npz")
            elif outcome == "verified" and self._is_same(tried, read_arrays(folder / "mesh.npz")):
                outcome = "equivalent"
        finally:
            shutil.rmtree(folder)
        return Result(self.name, tried, outcome, first, named, seconds)

    def _is_same(self, tried: Try, found: dict[str, Array]) -> bool:
        sound = self._sound[_SCALED if tried.job.chosen is not None else _SOUND]
        return set(sound) == set(found) and all(
            np.array_equal(sound[key], value, equal_nan=True) for key, value in found.items()
        )

    def _run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Runs jobs in one process, and yields each one's number and what the process tells of it."""
        (self.folder / JOBS).write_text(json.dumps([asdict(job) for job in jobs]))
        command = [sys.executable, "-m", "tests.campaign.mutations_worker", str(self.folder)]
        library = forks.JAX if self.engine == "jax" else forks.TENSORFLOW
        environment = os.environ | {"PYTHONPATH": str(forks.ROOT), "XLA_FLAGS": forks.SLOW_CODE}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (
            (self.folder / "log").open("a") as log,
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


class ResumedScene(Scene):
    """A network, an engine and a setting whose runs are resumed."""

    compared_with = _WHOLE

    def _tries(self, options: Options) -> Iterator[Try]:
        numbers = iter(range(1, 1_000_000))
        yield Try(_SOUND, Job(next(numbers), "resumed"), sound=True)
        broken = [each for each in MUTATIONS if self._fits(each) and re.search(options.mutation, each.name)]
        for mutation in broken:
            yield Try(mutation.name, Job(next(numbers), "resumed", mutation.name), mutation.named)
        if broken:
            yield Try(_AGAIN, Job(next(numbers), "resumed"), sound=True)

    def _judged(self, config: RunConfig, tried: Try, line: dict[str, Any]) -> Result:
        del config
        folder = tried.job.folder(self.folder)
        said = line["said"]
        if said["kind"] != "done":
            return Result(self.name, tried, f"{said['kind']}: {said['text']}", seconds=line["seconds"])
        try:
            wrong = resumes.differing(self.folder, folder)
        finally:
            shutil.rmtree(folder)
        named = tuple(key.removeprefix("state/") for key in wrong)
        # What changes nothing would be a mutation that does not break a run: each of these must.
        outcome = "mismatch" if wrong else "verified"
        return Result(self.name, tried, outcome, named, named, line["seconds"])


def make_scene(network: str, engine: str, setting: str, folder: Path) -> Scene:
    """Returns a scene; its folder must be empty."""
    kind = ResumedScene if networks.SETTINGS[setting].resumes else Scene
    return kind(network, engine, setting, folder)


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


def _drawn(tries: dict[int, Try], cases: int, seed: str) -> dict[int, Try]:
    """Draws tries: half of them of gradients that are scaled; those of sound engines stay where they are needed."""
    rng, drawn = random.Random(seed), set[int]()
    broken = [number for number, each in tries.items() if not each.sound]
    kinds = [[n for n in broken if (tries[n].job.chosen is None) is whole] for whole in (True, False)]
    for numbers, share in zip(kinds, (cases - cases // 2, cases // 2), strict=True):
        drawn |= set(rng.sample(numbers, min(share, len(numbers))))
    scales = any(tries[number].job.chosen is not None for number in drawn)
    return {
        number: each
        for number, each in tries.items()
        if number in drawn or (each.sound and (scales or each.name != _SCALED))
    }


def config_of(network: str, engine: str, setting: str, *more: str) -> RunConfig:
    """Returns the checked config of a scene; `more` are overrides."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        return convert(compose("config", overrides=[*networks.overrides(network, engine, setting), *more]))


def results(cases: int, seed: int, folder: Path, options: Options) -> Iterator[Result]:
    """Tries mutations, two scenes at a time, and yields what came of each.

    Args:
      cases: how many of each scene, drawn by the seed, beside the sound runs; 0: all.
      seed: of the draw.
      folder: an empty one.
      options: what is tried.
    """
    chosen = [
        scene
        for scene in networks.scenes()
        if all(
            not want or want == has
            for want, has in zip((options.network, options.engine, options.setting), scene, strict=True)
        )
    ]
    configs = {scene: config_of(*scene) for scene in chosen}  # Hydra composes in one thread alone
    found: queue.SimpleQueue[Result | None] = queue.SimpleQueue()

    def run_scene(scene: tuple[str, str, str]) -> None:
        place = folder / "-".join(scene)
        place.mkdir()
        made = make_scene(*scene, place)
        try:
            for result in made.results(configs[scene], options, cases, seed):
                found.put(result)
        except Exception as error:  # of the campaign itself: a case that is broken, and the others go on
            found.put(Result(made.name, Try("the campaign", _REFERENCE), f"raised {type(error).__name__}: {error}"))
        finally:
            found.put(None)
            shutil.rmtree(place, ignore_errors=True)

    with ThreadPoolExecutor(_WORKERS) as pool:
        for scene in chosen:
            pool.submit(run_scene, scene)
        left = len(chosen)
        while left:
            result = found.get()
            left -= result is None
            if result is not None:
                yield result


_results: list[Result] = []


def run(cases: int, seed: int, folder: Path, options: Options | None = None) -> Iterator[Case]:
    """Tries mutations; see `results`. What came of them is kept for `report`."""
    _results.clear()
    for result in results(cases, seed, folder, options or Options()):
        _results.append(result)
        yield result.case()


def report(out: TextIO) -> None:
    """Prints a line a mutation, and the totals, of what `run` tried."""
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for each in _results:
        outcome = each.outcome if each.outcome in ("verified", "inconclusive", "mismatch", "equivalent") else "failed"
        rows[each.tried.name][outcome] += 1
        rows[each.tried.name]["amiss"] += not each.held
    columns = ("mismatch", "inconclusive", "equivalent", "verified", "failed", "amiss")
    print(f"\n{'mutation':44}" + "".join(f"{column:>12}" for column in columns), file=out)
    for name, row in rows.items():
        print(f"{name:44}" + "".join(f"{row[column] or '':>12}" for column in columns), file=out)
    broken = [each for each in _results if not each.tried.sound]
    counted = [each for each in broken if each.outcome != "equivalent"]
    sound = [each for each in _results if each.tried.sound]
    print(
        f"{len({each.tried.name for each in counted})} ways to break an engine, tried {len(counted)} times: "
        f"{sum(each.held for each in counted)} caught, {len(counted) - sum(each.held for each in counted)} slipped "
        f"through; {len(broken) - len(counted)} changed nothing, to the last bit; sound engines: "
        f"{sum(each.held for each in sound)} of {len(sound)} verified",
        file=out,
    )
