"""One verification: the batches, the two sides, the comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from runner import mesh
from runner.config.errors import EngineError
from runner.config.schema import RunConfig
from runner.data.base import Dataset
from runner.verify.children import WORKER, run_child
from runner.verify.compare import PERTURBED_RUNS, compare
from runner.verify.parity import parity
from runner.verify.report import Verification
from runner.verify.request import make_request, read_arrays, write_request


def verify(config: RunConfig, data: Dataset, folder: Path, worker: str = WORKER) -> Verification:
    """Trains the config's first steps on one device and on its mesh, in two processes, and compares them.

    With `against.engine`, a third process trains on the mesh with that engine, and the two engines are compared.

    Args:
      config: checked.
      data: the config's dataset.
      folder: gets each process's output, `verify-reference.log`, `verify-mesh.log` and so on.
      worker: module that the processes run.

    Returns:
      The comparison, passed or not.

    Raises:
      ConfigError: the model, the layout or the dataset refuse the config.
      EngineError: a process failed, or the two sides don't hold the same variables.
    """
    peers = parity(config)
    sides = ("reference", "mesh", *(["against"] if peers else []))
    with tempfile.TemporaryDirectory(prefix="runner-verify-") as name:
        shared = Path(name)
        write_request(shared, make_request(config, data))
        said = {side: run_child(side, shared, folder / f"verify-{side}.log", worker) for side in sides}
        reference, *found = (read_arrays(shared / f"{side}.npz") for side in sides)
        perturbed = [read_arrays(shared / f"perturbed_{number}.npz") for number in range(PERTURBED_RUNS)]
    stated = said["reference"]
    bad = np.flatnonzero(~np.isfinite(reference["loss"]))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {reference['loss'][bad[0]]} at step {bad[0] + 1}, and nothing "
            "can be compared from there; lower optimizer.learning_rate or verify.steps"
        )
    try:
        if peers is None:
            checks = compare(reference, perturbed, found[0], stated["noise"])
        else:
            checks = compare(reference, perturbed, found[1], stated["noise"], found[0], peers.sides)
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    axes = mesh.describe(config.mesh.axes)
    terms, size, precision = stated["terms"], stated["noise"], config.engine.precision
    return Verification(tuple(checks), config.verify.steps, axes, terms, size, peers, precision)
