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
from runner.verify.children import WORKER, SideResult, run_children
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
        shared, places = _places(config, Path(), team)
        run_children(list(places), shared, folder, worker, 1, places)
        return None
    # Several processes may be on several machines: of these, the run's folder is the one that all of them reach.
    parent = None if team.count == 1 else folder
    with tempfile.TemporaryDirectory(prefix="runner-verify-", dir=parent) as name:
        shared = Path(name).absolute()
        write_request(shared, make_request(config, data))
        _, places = _places(config, shared, team)
        results = run_children(sides(config), shared, folder, worker, _concurrency(config), places)
        verification = compare_sides(config, shared, results)
        failed_kinds = {check.kind for check in verification.failed}
        if failed_kinds and failed_kinds <= FROM_THE_START:
            run_children(["again"], shared, folder, worker)
            verification = compare_sides(config, shared, results)
        return verification


def _places(config: RunConfig, shared: Path, team: Team) -> tuple[Path, dict[str, Place]]:
    """Returns process 0's folder, and by side the place of this process's child where the side is several processes.

    Args:
      config: checked.
      shared: folder of the verification; all processes reach process 0's.
      team: the processes, each of which has its children.
    """
    if not isinstance(team, Member):
        return shared, {}
    distributed = ["mesh"]
    if parity(config) and config.against.processes is None:
        distributed.append("against")
    # Each side is a cluster of its own, with a port and a secret that process 0 chooses.
    own = {side: (team.address, free_port(team.address), secrets.token_hex(16)) for side in distributed}
    folder, addresses = team.broadcast("verify's processes", lambda: (str(shared), own))
    return Path(folder), {side: Place(team.index, team.count, *addresses[side]) for side in distributed}


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
    # With two engines, `mesh` is the first one's side and `judged` the second one's; else both are the mesh's.
    first = arrays[1]
    judged = arrays[-1]
    spread = read_arrays(folder / "spread.npz")
    result = results["reference"]
    precision = result.get("precision", config.engine.precision)
    _check_finite(reference["loss"])

    noise = result["noise"]
    sums = noise_of_sums(result["terms"], precision)
    storage = storage_rounding(config.engine.state)
    both = parity(config)
    try:
        mesh_arrays = padding.without_checks(first)
        checks = compare(reference, spread, mesh_arrays, noise, sums=sums, storage=storage)
        if both is not None:
            other_arrays = padding.without_checks(judged)
            parity_checks = _compare_engines(both, reference, spread, mesh_arrays, other_arrays, noise, sums)
            # Two engines that agree in what one device contradicts are both wrong: then that is the result.
            if _all_passed(parity_checks) and not _all_passed(checks):
                both = None
            else:
                checks = parity_checks
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    return Verification(
        checks=(*checks, *padding.checks(judged)),
        steps=len(reference["loss"]),
        mesh=mesh.describe(config.mesh.axes),
        terms=result["terms"],
        noise=noise,
        parity=both,
        precision=precision,
        storage=storage,
        requested_steps=config.verify.steps,
    )


def _compare_engines(
    both: Parity,
    reference: Mapping[str, Array],
    spread: Mapping[str, Array],
    first: Mapping[str, Array],
    second: Mapping[str, Array],
    noise: float,
    sums: float,
) -> list[Check]:
    return compare(
        both.comparable(reference),
        spread,
        both.comparable(second),
        noise,
        expected=both.comparable(first),
        sides=both.sides,
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
