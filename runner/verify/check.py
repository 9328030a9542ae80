"""One verification: makes the batches, runs the sides, and compares their arrays."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runner.config.schema import MeshConfig, RunConfig
from runner.data.base import Array, Dataset
from runner.errors import EngineError
from runner.host import cores
from runner.layout import mesh
from runner.processes.launch import free_port
from runner.processes.member import Member
from runner.processes.place import Place
from runner.processes.team import Team, current
from runner.verify import padding
from runner.verify.children import PERTURBED, WORKER, SideResult, run_children
from runner.verify.compare import FROM_THE_START, compare
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request
from runner.verify.rounding import noise_of_sums, storage_rounding

# The order in which the sides start.
SIDES = ("reference", "mesh")


def verify(config: RunConfig, data: Dataset, folder: Path, worker: str = WORKER) -> Verification | None:
    """Trains the config's first steps on one device and on its mesh, in two processes, and compares them.

    If nothing but the training from the start differs, whose weights may be at a kink, one device runs several times
    as many perturbed runs before the difference is reported.

    Args:
      config: checked.
      data: the config's dataset.
      folder: gets each process's output, `verify-reference.log`, `verify-mesh.log` and so on.
      worker: module that the processes run.

    Returns:
      The comparison and its verdict; None in a process that is not the first of several, which takes part in it.

    Raises:
      ConfigError: the config is invalid for the model, the layout or the dataset.
      EngineError: a process failed, or the two sides don't have the same variables.
    """
    team = current()
    if not team.is_first:
        shared = _shared_folder(team)
        places = _child_places(team)
        run_children(list(places), shared, folder, worker, concurrency=1, places=places)
        return None
    # Several processes may be on several machines: of these, the run's folder is the one that all of them reach.
    parent = None if team.count == 1 else folder
    with tempfile.TemporaryDirectory(prefix="runner-verify-", dir=parent) as name:
        shared = Path(name).absolute()
        write_request(shared, make_request(config, data))
        _shared_folder(team, shared)
        places = _child_places(team)
        results = run_children(SIDES, shared, folder, worker, concurrency=_concurrency(config.mesh), places=places)
        verification = compare_sides(config, shared, results)
        failed_kinds = {check.kind for check in verification.failed}
        if failed_kinds and failed_kinds <= FROM_THE_START:
            run_children([PERTURBED], shared, folder, worker)
            verification = compare_sides(config, shared, results)
        return verification


def _shared_folder(team: Team, folder: Path | None = None) -> Path:
    """Returns the folder of the verification, which all processes reach.

    Args:
      team: the processes.
      folder: in process 0, the folder that it tells the others.
    """
    return Path(team.broadcast("verify's folder", lambda: str(folder)))


def _child_places(team: Team) -> dict[str, Place]:
    """Returns, by side that computes in several processes, which the mesh does, the place of this process's child.

    Args:
      team: the processes, each of which has its children.
    """
    if not isinstance(team, Member):
        return {}
    # The children are a cluster of their own, with a port and a secret that process 0 chooses.
    own = (team.address, free_port(team.address), secrets.token_hex(16))
    address = team.broadcast("verify's processes", lambda: own)
    return {"mesh": Place(team.index, team.count, *address)}


def _concurrency(config: MeshConfig) -> int:
    """Returns how many sides run at a time.

    On CPUs with more than one core two do: the mesh's program is compiled while one device still trains. On
    accelerators the sides would compete for their memory.
    """
    return 2 if mesh.device_kind(config) == "cpu" and cores.available() > 1 else 1


def compare_sides(config: RunConfig, folder: Path, results: Mapping[str, SideResult]) -> Verification:
    """Compares the arrays that the sides left in their folder.

    Args:
      config: checked.
      folder: contains each side's arrays.
      results: the results of the sides, in their order.

    Raises:
      EngineError: the loss on one device is NaN or Inf, or the sides don't have the same variables.
    """
    reference = read_arrays(folder / "reference.npz")
    mesh_side = read_arrays(folder / "mesh.npz")
    spread = read_arrays(folder / "spread.npz")
    reference_result = results["reference"]
    precision = reference_result.get("precision", config.engine.precision)
    _check_finite(reference["loss"])

    noise = reference_result["noise"]
    sums = noise_of_sums(reference_result["terms"], precision)
    storage = storage_rounding(config.engine.state)
    try:
        checks = compare(reference, spread, padding.without_checks(mesh_side), noise, sums=sums, storage=storage)
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    return Verification(
        checks=(*checks, *padding.checks(mesh_side)),
        steps=len(reference["loss"]),
        mesh=mesh.describe(config.mesh.axes),
        terms=reference_result["terms"],
        noise=noise,
        precision=precision,
        storage=storage,
        requested_steps=config.verify.steps,
    )


def _check_finite(losses: Array) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {losses[bad[0]]} at step {bad[0] + 1}, so later steps can't be "
            "compared; lower optimizer.learning_rate or verify.steps"
        )
