"""Judges sound and wrong steps: by `meshproof`, by fixed tolerances, and by a curve of the loss.

A step is *sound* on two and on eight devices; on eight, each of its bugs is a mutant. A fixed tolerance compares all
leaves of the state after five steps, as `np.allclose(rtol=t, atol=t)`; a curve passes if its loss stays within 1% for
50 steps, as a person compares two curves. A false alarm is a sound step that fails, a miss is a mutant that passes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.foreign.trainer import Made

TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6)
CURVE_STEPS = 50
# Prefix of a net whose whole step the compiler divides.
COMPILED = "compiled, "
JUDGES = ("meshproof", *(f"allclose {tolerance:g}" for tolerance in TOLERANCES), "loss curve")


@dataclass(frozen=True)
class Judged:
    """A step with what each judge says: whether it finds a difference.

    Attributes:
      detects: the largest relative error that `meshproof` would not have found.
      seconds: of the verdict, compilation included.
    """

    name: str
    bug: str
    devices: int
    differs: dict[str, bool]
    verdict: str
    first: str
    detects: float
    seconds: float


def judged(name: str) -> list[dict[str, object]]:
    """Returns the judgements of a net's sound steps and of its mutants."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    from tests.foreign import hands, trainer
    from tests.foreign.nets import NETS

    if name in hands.HANDS:
        step = hands.HANDS[name]()
        make, bugs = partial(hands.make, step), step.bugs
    else:
        net = NETS[name.removeprefix(COMPILED)]()
        make, bugs = partial(trainer.make, net), net.bugs
        if name.startswith(COMPILED):
            make, bugs = partial(trainer.make_compiled, net), ()
    found = [_judged(name, make(devices), devices, "") for devices in (2, 8)]
    found += [_judged(name, make(8, bug), 8, bug) for bug in bugs]
    return [vars(each) for each in found]


def _judged(name: str, made: Made, devices: int, bug: str) -> Judged:
    import jax
    import numpy as np

    from runner.verify import meshproof
    from runner.verify.meshproof import trees

    begin = time.perf_counter()
    report = meshproof.compare(
        made.step, made.reference, made.state, made.batches, place=made.place, place_batch=made.place_batch
    )
    seconds = time.perf_counter() - begin
    differs = {"meshproof": report.verdict != "verified"}
    curves: list[list[float]] = []
    ends = []
    for step, place, place_batch in ((made.step, made.place, made.place_batch), (made.reference, None, None)):
        state = made.state if place is None else place(made.state)
        curve = []
        for number in range(CURVE_STEPS):
            batch = made.batches[number % len(made.batches)]
            state, outputs = step(state, batch if place_batch is None else place_batch(batch))
            curve.append(float(outputs["loss"]))
            if number == 4:
                ends.append([np.asarray(leaf) for leaf in jax.tree.leaves(state) if not trees.is_key(leaf)])
        curves.append(curve)
    for tolerance in TOLERANCES:
        pairs = zip(*ends, strict=True)
        near = [np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs]
        differs[f"allclose {tolerance:g}"] = not all(near)
    differs["loss curve"] = not np.allclose(*curves, rtol=0.01, atol=0.01)
    detects = max((variable.resolution for variable in report.variables), default=float("inf"))
    first = report.first.name if report.first else ""
    return Judged(name, bug, devices, differs, report.verdict, first, detects, seconds)


def rows(names: Sequence[str], python: str = sys.executable) -> list[Judged]:
    """Returns the judgements of nets, each in a process of its own, by a Python that has the packages."""
    found = []
    for name in names:
        program = f"import json; from tests.foreign.judges import judged; print(json.dumps(judged({name!r})))"
        place = os.environ | {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
        done = subprocess.run([python, "-c", program], env=place, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        found += [Judged(**each) for each in json.loads(done.stdout.splitlines()[-1])]
    return found


def summary(judgements: Sequence[Judged]) -> str:
    """Returns the table of judges: false alarms of the sound steps, and misses of the mutants."""
    sound = [each for each in judgements if not each.bug]
    wrong = [each for each in judgements if each.bug]
    lines = [f"| judge | false alarms of {len(sound)} sound steps | misses of {len(wrong)} mutants |", "|---|---|---|"]
    for judge in JUDGES:
        alarms = sum(each.differs[judge] for each in sound)
        misses = sum(not each.differs[judge] for each in wrong)
        lines.append(f"| {judge} | {alarms} | {misses} |")
    return "\n".join(lines)


def main(names: Sequence[str]) -> int:
    """Prints both tables; returns 1 if `meshproof` has a false alarm or a miss."""
    from tests.foreign.hands import HANDS
    from tests.foreign.nets import COMPILED_TOO, NETS

    every = [*NETS, *HANDS, *(COMPILED + name for name in COMPILED_TOO)]
    chosen = [name for name in every if not names or any(part in name for part in names)]
    judgements = []
    for name in chosen:
        for each in rows([name]):
            judgements.append(each)
            marks = " ".join("x" if each.differs[judge] else "." for judge in JUDGES)
            print(
                f"{each.name:28} {each.devices} {each.bug or 'sound':40} {marks}  {each.verdict} {each.first} "
                f"detects {each.detects:.1e} {each.seconds:.1f} s",
                flush=True,
            )
    print(summary(judgements))
    return int(any(each.differs["meshproof"] != bool(each.bug) for each in judgements))
