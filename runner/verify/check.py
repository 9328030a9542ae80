"""One verification: the batches, the two sides, the comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from runner import mesh
from runner.dataset import Dataset
from runner.errors import EngineError
from runner.schema import RunConfig
from runner.verify.children import WORKER, run_child
from runner.verify.compare import TWINS, compare
from runner.verify.report import Report
from runner.verify.request import make_request, read_arrays, write_request


def verify(config: RunConfig, data: Dataset, folder: Path, worker: str = WORKER) -> Report:
    """Trains the config's first steps on one device and on its mesh, in two processes, and compares them.

    Args:
      config: checked.
      data: the config's dataset.
      folder: gets each process's output, `verify-reference.log` and `verify-mesh.log`.
      worker: module that the processes run.

    Returns:
      The comparison, passed or not.

    Raises:
      ConfigError: the model, the layout or the dataset refuse the config.
      EngineError: a process failed, or the two sides don't hold the same variables.
    """
    with tempfile.TemporaryDirectory(prefix="runner-verify-") as name:
        shared = Path(name)
        write_request(shared, make_request(config, data))
        stated = run_child("reference", shared, folder / "verify-reference.log", worker)
        run_child("mesh", shared, folder / "verify-mesh.log", worker)
        reference, on_mesh = (read_arrays(shared / f"{side}.npz") for side in ("reference", "mesh"))
        twins = [read_arrays(shared / f"twin_{number}.npz") for number in range(TWINS)]
    bad = np.flatnonzero(~np.isfinite(reference["loss"]))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {reference['loss'][bad[0]]} at step {bad[0] + 1}, and nothing "
            "can be compared from there; lower optimizer.learning_rate or verify.steps"
        )
    try:
        checks = compare(reference, twins, on_mesh, stated["noise"])
    except ValueError as error:
        raise EngineError(f"verify failed: {error}") from error
    return Report(
        tuple(checks), config.verify.steps, mesh.describe(config.mesh.axes), int(stated["terms"]), stated["noise"]
    )
