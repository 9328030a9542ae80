"""One verification: the batches, the two sides, the comparison."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runner.config.schema import RunConfig
from runner.data.base import Dataset
from runner.errors import EngineError
from runner.host import cores
from runner.layout import mesh
from runner.processes.launch import free_port
from runner.processes.member import Member
from runner.processes.place import Place
from runner.processes.team import Team, current
from runner.verify import padding
from runner.verify.children import WORKER, Outcome, run_children
from runner.verify.compare import FROM_THE_START, compare
from runner.verify.parity import parity
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request
from runner.verify.rounding import noise_of_sums, stored


def verify(config: RunConfig, data: Dataset, folder: Path, worker: str = WORKER) -> Verification | None:
    """Trains the config's first steps on one device and on its mesh, in two processes, and compares them.

    With `against.engine`, a third process trains on the mesh with that engine, and the two engines are compared. Where
    the two sides differ in nothing but the training from the start, whose weights may lie on a kink, one device is
    asked once more, how far it differs from itself there in several times as many runs.

    Args:
      config: checked.
      data: the config's dataset.
      folder: gets each process's output, `verify-reference.log`, `verify-mesh.log` and so on.
      worker: module that the processes run.

    Returns:
      The comparison and its verdict; None in a process that is not the first of several, which takes part in it.

    Raises:
      ConfigError: the model, the layout or the dataset refuse the config.
      EngineError: a process failed, or the two sides don't hold the same variables.
    """
    team = current()
    if not team.is_first:
        shared, places = _places(config, Path(), team)
        run_children(list(places), shared, folder, worker, 1, places)
        return None
    with tempfile.TemporaryDirectory(prefix="runner-verify-", dir=None if team.count == 1 else folder) as name:
        shared = Path(name).absolute()
        write_request(shared, make_request(config, data))
        _, places = _places(config, shared, team)
        said = run_children(sides(config), shared, folder, worker, _together(config), places)
        found = judged(config, shared, said)
        if found.failed and {check.kind for check in found.failed} <= FROM_THE_START:
            run_children(["again"], shared, folder, worker)
            found = judged(config, shared, said)
        return found


def _places(config: RunConfig, shared: Path, team: Team) -> tuple[Path, dict[str, Place]]:
    """Returns process 0's folder, and the place of each of this process's children that is one of several.

    Args:
      config: checked.
      shared: of a verification; all processes reach process 0's.
      team: the processes, each of which has its children.
    """
    if not isinstance(team, Member):
        return shared, {}
    sides = ["mesh", *(["against"] if parity(config) and config.against.processes is None else [])]
    told = {side: (team.address, free_port(team.address), secrets.token_hex(16)) for side in sides}
    where, found = team.broadcast("verify's processes", lambda: (str(shared), told))
    return Path(where), {side: Place(team.index, team.count, *found[side]) for side in sides}


def _together(config: RunConfig) -> int:
    """Returns how many sides run at a time: on CPUs the mesh's program is compiled while one device still trains."""
    return 2 if mesh.device_kind(config.mesh) == "cpu" and cores.available() > 1 else 1


def sides(config: RunConfig) -> tuple[str, ...]:
    """Returns the processes of a verification, in their order."""
    return ("reference", "mesh", *(["against"] if parity(config) else []))


def judged(config: RunConfig, folder: Path, said: Mapping[str, Outcome]) -> Verification:
    """Compares what the sides left in their folder.

    Args:
      config: checked.
      folder: holds each side's arrays.
      said: what each side said when it was done.

    Raises:
      EngineError: the loss on one device is not finite, or the sides don't hold the same variables.
    """
    peers = parity(config)
    reference, *found = (read_arrays(folder / f"{side}.npz") for side in said)
    spread = read_arrays(folder / "spread.npz")
    told = said["reference"]
    terms = told["terms"]
    size = told["noise"]
    precision = told.get("precision", config.engine.precision)
    bad = np.flatnonzero(~np.isfinite(reference["loss"]))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {reference['loss'][bad[0]]} at step {bad[0] + 1}, and nothing "
            "can be compared from there; lower optimizer.learning_rate or verify.steps"
        )
    judging = padding.compared(found[-1])
    first = padding.compared(found[0])
    sums = noise_of_sums(terms, precision)
    kept = stored(config.engine.state)
    try:
        checks = compare(reference, spread, first, size, sums=sums, stored=kept)
        if peers is not None:
            arrays = [peers.compared(each) for each in (reference, judging, first)]
            both = compare(arrays[0], spread, arrays[1], size, arrays[2], peers.sides, sums)
            if all(check.passed for check in both) and not all(check.passed for check in checks):
                peers = None  # the two agree in what is wrong
            else:
                checks = both
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    every = (*checks, *padding.checks(found[-1]))
    steps = len(reference["loss"])
    axes = mesh.describe(config.mesh.axes)
    return Verification(every, steps, axes, terms, size, peers, precision, kept, config.verify.steps)
