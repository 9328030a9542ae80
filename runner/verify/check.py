"""One verification: makes the batches, runs the sides, and compares their arrays."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runner.config.schema import RunConfig
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
from runner.verify.compare import FROM_THE_START, Check, compare
from runner.verify.parity import Parity, parity
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request
from runner.verify.rounding import noise_of_sums, storage_rounding


def verify(config: RunConfig, data: Dataset, folder: Path, worker: str = WORKER) -> Verification | None:
    """Trains the config's first steps on one device and on its mesh, in two processes, and compares them.

    With `against.engine`, a third process trains on the mesh with that engine, and the two engines are compared. If
    nothing but the training from the start differs, whose weights may be at a kink, one device runs several times as
    many perturbed runs before the difference is reported.

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
        results = run_children(sides(config), shared, folder, worker, concurrency=_concurrency(config), places=places)
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


def _concurrency(config: RunConfig) -> int:
    """Returns how many sides run at a time.

    On CPUs with more than one core two do: the mesh's program is compiled while one device still trains. On
    accelerators the sides would compete for their memory.
    """
    return 2 if mesh.device_kind(config.mesh) == "cpu" and cores.available() > 1 else 1


def sides(config: RunConfig) -> list[str]:
    """Returns the sides of a verification, in the order in which they start."""
    names = ["reference", "mesh"]
    if parity(config):
        names.append("against")
    return names


def compare_sides(config: RunConfig, folder: Path, results: Mapping[str, SideResult]) -> Verification:
    """Compares the arrays that the sides left in their folder.

    Args:
      config: checked.
      folder: contains each side's arrays.
      results: the results of the sides, in their order.

    Raises:
      EngineError: the loss on one device is NaN or Inf, or the sides don't have the same variables.
    """
    arrays = [read_arrays(folder / f"{side}.npz") for side in results]
    reference = arrays[0]
    # With two engines, the judged side is the second engine's; else it is the mesh too.
    mesh_side = arrays[1]
    judged_side = arrays[-1]
    spread = read_arrays(folder / "spread.npz")
    reference_result = results["reference"]
    precision = reference_result.get("precision", config.engine.precision)
    _check_finite(reference["loss"])

    noise = reference_result["noise"]
    sums = noise_of_sums(reference_result["terms"], precision)
    storage = storage_rounding(config.engine.state)
    engine_parity = parity(config)
    try:
        mesh_arrays = padding.without_checks(mesh_side)
        checks = compare(reference, spread, mesh_arrays, noise, sums=sums, storage=storage)
        if engine_parity is not None:
            other_arrays = padding.without_checks(judged_side)
            parity_checks = _compare_engines(engine_parity, reference, spread, mesh_arrays, other_arrays, noise, sums)
            # If both engines agree with each other but not with one device, both are wrong, so report the comparison
            # with one device.
            if _all_passed(parity_checks) and not _all_passed(checks):
                engine_parity = None
            else:
                checks = parity_checks
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    return Verification(
        checks=(*checks, *padding.checks(judged_side)),
        steps=len(reference["loss"]),
        mesh=mesh.describe(config.mesh.axes),
        terms=reference_result["terms"],
        noise=noise,
        parity=engine_parity,
        precision=precision,
        storage=storage,
        requested_steps=config.verify.steps,
    )


def _compare_engines(
    engine_parity: Parity,
    reference: Mapping[str, Array],
    spread: Mapping[str, Array],
    first: Mapping[str, Array],
    second: Mapping[str, Array],
    noise: float,
    sums: float,
) -> list[Check]:
    """Compares the second engine with the first, in what both compute."""
    return compare(
        engine_parity.comparable(reference),
        spread,
        engine_parity.comparable(second),
        noise,
        expected=engine_parity.comparable(first),
        sides=engine_parity.sides,
        sums=sums,
    )


def _all_passed(checks: list[Check]) -> bool:
    return all(check.passed for check in checks)


def _check_finite(losses: Array) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {losses[bad[0]]} at step {bad[0] + 1}, so later steps can't be "
            "compared; lower optimizer.learning_rate or verify.steps"
        )
