"""Comparison of an export with its run: the same examples through both, in different processes.

Shapes: N examples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.arrays import of as array_functions
from runner.data.base import Array
from runner.errors import EngineError
from runner.export.signature import Served
from runner.export.write import KERAS_FILE, SAVED_MODEL, Written

# Of the largest value of an answer. The run and its export sum in another order in float32, whose rounding is 6e-8 per
# operation; a wrong weight or a wrong input changes the answers by far more.
TOLERANCE = 1e-5

# Examples that the export predicts at once, unless the model mixes them.
BATCH = 500

# Environment variables that the engine set for the devices of its own process.
_MESH_VARIABLES = ("DTENSOR_", "PJRT_NPROC", "XLA_FLAGS")


@dataclass(frozen=True)
class Difference:
    """The difference between an export's answer and the run's.

    Attributes:
      exact: whether the answer has integers, which must be equal.
      differing: examples whose integers differ; 0 for floats.
      largest: largest absolute difference of a float; 0 for integers.
      scale: largest absolute value of the run's answer; for a random answer, of the export's.
      drawn: whether the answer depends on random numbers, which each call draws again, so that it must only be finite.
    """

    exact: bool
    differing: int
    largest: float
    scale: float
    drawn: bool = False

    @property
    def equal(self) -> bool:
        """Whether floats agree to 1e-5 of the largest, as float32 rounds them, and integers exactly."""
        if self.drawn:
            return bool(np.isfinite(self.scale))
        # NaN compares false.
        return self.differing == 0 and self.largest <= TOLERANCE * self.scale


@dataclass(frozen=True)
class Comparison:
    """The differences between an export's answers and the run's.

    Attributes:
      examples: how many were compared.
      answers: the task's name of an answer -> difference.
    """

    examples: int
    answers: Mapping[str, Difference]

    @property
    def equal(self) -> bool:
        """Whether all answers are equal."""
        return all(difference.equal for difference in self.answers.values())


def compare(run: Mapping[str, Array], export: Mapping[str, Array], drawn: Collection[str] = ()) -> Comparison:
    """Compares answers by name, each (N, ...).

    Args:
      run: answers of the run.
      export: answers of the export, loaded again.
      drawn: names of the answers that depend on random numbers.

    Raises:
      EngineError: the export has other answers, or other shapes.
    """
    run_shapes = _shapes(run)
    export_shapes = _shapes(export)
    if export_shapes != run_shapes:
        raise EngineError(f"the export answers {_listed(export_shapes)}, but the run answers {_listed(run_shapes)}")
    answers: dict[str, Difference] = {}
    for name, answer in run.items():
        if name in drawn:
            answers[name] = _drawn(export[name])
        else:
            answers[name] = _difference(answer, export[name])
    return Comparison(len(next(iter(run.values()))), answers)


def _shapes(answers: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: answer.shape for name, answer in answers.items()}


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _drawn(export: Array) -> Difference:
    exact = np.issubdtype(export.dtype, np.integer)
    return Difference(exact, 0, 0.0, float(np.abs(export).max(initial=0)), drawn=True)


def _difference(run: Array, export: Array) -> Difference:
    if np.issubdtype(run.dtype, np.integer):
        differing = (run != export).reshape(len(run), -1).any(axis=1)
        return Difference(True, int(differing.sum()), 0.0, float(np.abs(run).max(initial=0)))
    return Difference(False, 0, float(np.abs(run - export).max()), float(np.abs(run).max()))


def check(
    folder: Path,
    written: Written,
    library: str,
    served: Served,
    arrays: Mapping[str, Array],
    run: Array | Mapping[str, Array],
    log: Path,
    drawn: Collection[str] = (),
    batch: int = BATCH,
) -> dict[str, Comparison]:
    """Loads an export in a fresh process, and compares its answers with the run's.

    A fresh process, because the export must load without anything that this process has imported or built.

    Args:
      folder: the folder of the export.
      written: its content.
      library: `keras` or `tf_keras`, which reads its Keras file.
      served: its signature.
      arrays: (N, ...) by name, its inputs.
      run: outputs (N, ...) of the run; by name if the model has several.
      log: gets what the process prints.
      drawn: names of the answers that depend on random numbers, see `runner.export.drawn`.
      batch: examples that are predicted at once.

    Returns:
      `SavedModel` and `model.keras` -> comparison, as far as they were written.

    Raises:
      EngineError: the export can't be loaded.
    """
    served_arrays = {name: arrays[name].astype(spec.dtype) for name, spec in served.inputs.items()}
    model_inputs = served.model_inputs(array_functions(np), served_arrays)
    inputs = model_inputs
    if not isinstance(model_inputs, Mapping):
        inputs = {"": model_inputs}
    # What the run did not write is not loaded.
    saved_model_path = None
    if written.saved_model:
        saved_model_path = str(folder / SAVED_MODEL)
    keras_path = None
    if written.keras == KERAS_FILE:
        keras_path = str(folder / KERAS_FILE)
    with tempfile.TemporaryDirectory(prefix="runner-export-") as name:
        shared = Path(name)
        # By number and not by name: a name may be one of NumPy's own parameters.
        np.savez(shared / "arrays.npz", *served_arrays.values())
        np.savez(shared / "inputs.npz", *inputs.values())
        request = {
            "saved_model": saved_model_path,
            "keras": keras_path,
            "library": library,
            "beside": list(written.beside),
            "batch": batch,
            "arrays": list(served_arrays),
            "inputs": list(inputs),
        }
        (shared / "request.json").write_text(json.dumps(request))
        reply = _answer(shared, library, log)

    expected = served.answers(run)
    compared: dict[str, Comparison] = {}
    saved_model = _without_prefix(reply, "saved_model/")
    if saved_model:
        compared["SavedModel"] = compare(expected, saved_model, drawn)
    # The Keras file has the model's outputs and not the task's answers: one array, or several by name.
    several = _without_prefix(reply, "keras/")
    if "keras" in reply:
        compared[KERAS_FILE] = compare(expected, served.answers(reply["keras"]), drawn)
    elif several:
        compared[KERAS_FILE] = compare(expected, served.answers(several), drawn)
    return compared


def _without_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Returns the arrays whose name begins with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _answer(shared: Path, library: str, log: Path) -> dict[str, Array]:
    """Runs `runner.export.reload` on a folder with a request; returns its reply."""
    environment = dict(os.environ)
    for key in os.environ:
        if key.startswith(_MESH_VARIABLES):
            del environment[key]
    # This process has the memory of the accelerators, so the other one predicts on the CPU.
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if library == "keras":
        environment["KERAS_BACKEND"] = "jax"
    else:
        environment["TF_USE_LEGACY_KERAS"] = "1"
    command = [sys.executable, "-m", "runner.export.reload", str(shared)]
    with log.open("ab") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise EngineError(f"the export can't be loaded again: its process exited with {done.returncode}; see {log}")
    with np.load(shared / "answer.npz", allow_pickle=False) as answer:
        return dict(answer)
