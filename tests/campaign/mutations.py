"""Breaks engines in many ways, and sees that a verification says so, and names the variable.

`python -m tests.campaign mutations [--sample N] [--engine E] [--network N] [--setting S] [--mutation REGEX]`

A scene is a network, an engine and a setting, see `tests.campaign.networks`. Its single device runs once, untouched.
Its mesh runs sound, which must be verified, and then with each mutation, which must not: the verdict is "mismatch" or
"inconclusive", and names the variable that the mutation is aimed at. A mutation whose run is the same to the last bit
as the sound one changes nothing, and is not counted.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from runner.config.schema import RunConfig
from runner.host import paths
from runner.plan.checks.run import convert
from runner.verify.worker import REQUEST
from tests import forks
from tests.campaign import networks
from tests.campaign.base import Case
from tests.campaign.mutations_table import MUTATIONS, Mutation
from tests.campaign.mutations_worker import JOBS

_LONGEST_S = 400.0  # that a side may take


@dataclass(frozen=True)
class Result:
    """What came of a try.

    Attributes:
      scene: engine, network and setting in words.
      mutation: what broke the mesh; None: nothing did, and it must be verified.
      outcome: `verified`, `inconclusive`, `mismatch`, `equivalent` (the same as the sound run to the last bit), or
        how it failed.
      aimed: path of the variable that the mutation is aimed at; empty: none.
      first: variables of the checks that failed nearest to the error, see `culprits`.
      named: all variables that the verdict names.
      seconds: that the mesh took.
    """

    scene: str
    mutation: Mutation | None
    outcome: str
    aimed: str = ""
    first: Sequence[str] = ()
    named: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        """Tells whether it is as it must be."""
        if self.mutation is None:
            return self.outcome == "verified"
        wanted = self.mutation.named or re.escape(self.aimed)
        is_named = not wanted or any(re.fullmatch(wanted, name) for name in (self.first if self.aimed else self.named))
        return self.outcome == "equivalent" or (self.outcome in ("mismatch", "inconclusive") and is_named)

    @property
    def name(self) -> str:
        """Returns the mutation in words."""
        return "nothing broken" if self.mutation is None else self.mutation.name

    def case(self) -> Case:
        """Returns the campaign's case."""
        aimed = f" ({self.aimed})" if self.aimed else ""
        shown = ", ".join(self.first[:4]) + (", ..." if len(self.first) > 4 else "")
        return Case(f"{self.scene}: {self.name}{aimed}", self.held, f"{self.outcome}: {shown}  {self.seconds:.0f} s")


def _drawn(network: str, setting: str, pattern: str, cases: int, seed: str) -> list[Mutation | None]:
    """Returns the tries of a scene: the sound engine first and last, and the drawn mutations between them."""
    fitting = [each for each in MUTATIONS if network in each.networks and setting in each.settings]
    broken = [each for each in fitting if re.search(pattern, each.name)]
    if cases and cases < len(broken):
        drawn = random.Random(seed).sample(range(len(broken)), cases)
        broken = [broken[number] for number in sorted(drawn)]
    return [None, *broken, None] if broken else [None]


def _scene(engine: str, config: RunConfig, name: str, tries: list[Mutation | None], folder: Path) -> Iterator[Result]:
    """Runs the single device, then the mesh for each try, and yields what came of it."""
    (folder / REQUEST).write_text(json.dumps(asdict(config)))
    while tries:
        names = [mutation.name if mutation else "" for mutation in tries]
        (folder / JOBS).write_text(json.dumps(names))
        done = 0
        for line in _lines(engine, folder):
            done = line.pop("number") + 1
            yield Result(name, tries[done - 1], **line)
        tries = tries[done:]
        if tries:  # the process died of the first that is left
            yield Result(name, tries.pop(0), f"failed: the process ended: {(folder / 'log').read_text()[-500:]}")


def _lines(engine: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Runs jobs in one process, and yields what it tells of each."""
    command = [sys.executable, "-m", "tests.campaign.mutations_worker", str(folder)]
    library = forks.OF_ENGINE[engine]
    environment = os.environ | {"PYTHONPATH": str(forks.ROOT), "XLA_FLAGS": forks.SLOW_CODE}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        (folder / "log").open("a") as log,
        forks.Popen(command, library=library, cwd=forks.ROOT, env=environment, stderr=log, **streams) as process,
    ):
        assert process.stdout is not None
        watch = threading.Timer(_LONGEST_S, process.kill)
        watch.start()
        try:
            for text in process.stdout:
                if text.startswith('{"number"'):
                    watch.cancel()
                    yield json.loads(text)
                    watch = threading.Timer(_LONGEST_S, process.kill)
                    watch.start()
        finally:
            watch.cancel()
            process.kill()


def config_of(network: str, engine: str, setting: str) -> RunConfig:
    """Returns the checked config of a scene."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        return convert(compose("config", overrides=networks.overrides(network, engine, setting)))


def results(
    cases: int, seed: int, folder: Path, *, engine: str = "", network: str = "", setting: str = "", mutation: str = ""
) -> Iterator[Result]:
    """Tries mutations, one scene after another, and yields what came of each.

    Args:
      cases: how many of each scene, drawn by the seed, beside the sound runs; 0: all.
      seed: of the draw.
      folder: an empty one.
      engine: name of the only one; empty: all.
      network: name of the only one; empty: all.
      setting: name of the only one; empty: all.
      mutation: regular expression that is found in the names of mutations.
    """
    wanted = (network, engine, setting)
    for scene in networks.scenes():
        if any(want and want != has for want, has in zip(wanted, scene, strict=True)):
            continue
        place = folder / "-".join(scene)
        place.mkdir()
        name = f"{scene[1]} {scene[0]} {scene[2]}"
        tries = _drawn(scene[0], scene[2], mutation, cases, f"{seed} {name}")
        yield from _scene(scene[1], config_of(*scene), name, tries, place)
        shutil.rmtree(place)


def report(found: Sequence[Result], out: TextIO) -> None:
    """Prints a line a mutation, and the totals."""
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for each in found:
        outcome = each.outcome if each.outcome in ("verified", "inconclusive", "mismatch", "equivalent") else "failed"
        rows[each.name][outcome] += 1
        rows[each.name]["amiss"] += not each.held
    columns = ("mismatch", "inconclusive", "equivalent", "verified", "failed", "amiss")
    print(f"\n{'mutation':44}" + "".join(f"{column:>12}" for column in columns), file=out)
    for name, row in rows.items():
        print(f"{name:44}" + "".join(f"{row[column] or '':>12}" for column in columns), file=out)
    broken = [each for each in found if each.mutation]
    counted = [each for each in broken if each.outcome != "equivalent"]
    caught = sum(each.held for each in counted)
    sound = [each for each in found if not each.mutation]
    print(
        f"{len({each.name for each in counted})} ways to break an engine, tried {len(counted)} times: "
        f"{caught} caught, {len(counted) - caught} slipped through; {len(broken) - len(counted)} changed nothing, "
        f"to the last bit; sound engines: {sum(each.held for each in sound)} of {len(sound)} verified",
        file=out,
    )
