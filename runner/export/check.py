"""Holds an export against the run: the same examples through both, in different processes.

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

from runner.data.base import Array
from runner.errors import EngineError
from runner.export.signature import Served
from runner.export.write import KERAS_FILE, SAVED_MODEL, Written
from runner.task import namespace

TOLERANCE = 1e-5
_BATCH = 500
_OF_THE_MESH = ("DTENSOR_", "PJRT_NPROC", "XLA_FLAGS")  # what the engine set for its own process


@dataclass(frozen=True)
class Difference:
    """How far one of an export's answers is from the run's.

    Attributes:
      exact: it is of integers.
      differing: examples whose integers differ; 0 of floats.
      largest: largest absolute difference of a float; 0 of integers.
      scale: the run's largest absolute value of it; of what is drawn, the export's.
      drawn: it comes of random numbers, which each call draws again, so that it must be finite and no more.
    """

    exact: bool
    differing: int
    largest: float
    scale: float
    drawn: bool = False

    @property
    def equal(self) -> bool:
        """Whether floats are the same to 1e-5 of the largest, as float32 rounds them, and integers exactly."""
        if self.drawn:
            return bool(np.isfinite(self.scale))
        return self.differing == 0 and self.largest <= TOLERANCE * self.scale  # false for NaN


@dataclass(frozen=True)
class Comparison:
    """How far an export's answers are from the run's.

    Attributes:
      examples: that were compared.
      answers: name -> difference, as the task names them.
    """

    examples: int
    answers: Mapping[str, Difference]

    @property
    def equal(self) -> bool:
        """Whether every answer is."""
        return all(found.equal for found in self.answers.values())


def compare(run: Mapping[str, Array], export: Mapping[str, Array], drawn: Collection[str] = ()) -> Comparison:
    """Compares answers by name, each (N, ...).

    Args:
      run: of the run.
      export: of what was loaded again.
      drawn: names of what comes of random numbers.

    Raises:
      EngineError: the export gave others, or in other shapes.
    """
    shapes = [{name: answer.shape for name, answer in each.items()} for each in (run, export)]
    if shapes[0] != shapes[1]:
        said = (", ".join(f"{name} {list(shape)}" for name, shape in each.items()) for each in reversed(shapes))
        raise EngineError(f"the export gives {next(said)}, the run {next(said)}")
    answers = {}
    for name, answer in run.items():
        answers[name] = _drawn(export[name]) if name in drawn else _difference(answer, export[name])
    return Comparison(len(next(iter(run.values()))), answers)


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
) -> dict[str, Comparison]:
    """Loads what was written in a fresh process, and compares its answers with the run's.

    Args:
      folder: of the export.
      written: what is in it.
      library: Keras of its Keras file.
      served: what it takes and answers.
      arrays: (N, ...) by name, of what it takes.
      run: outputs (N, ...) of the run; by name if the model gives several.
      log: gets what the process prints.
      drawn: names of the answers that come of random numbers, as `runner.export.drawn` tells.

    Returns:
      What was compared, `SavedModel` and `model.keras`, and how.

    Raises:
      EngineError: it can't be loaded.
    """
    given = {name: arrays[name].astype(spec.dtype) for name, spec in served.inputs.items()}
    inputs = served.model_inputs(namespace.of(np), given)
    inputs = inputs if isinstance(inputs, Mapping) else {"": inputs}
    with tempfile.TemporaryDirectory(prefix="runner-export-") as name:
        shared = Path(name)
        np.savez(shared / "arrays.npz", *given.values())
        np.savez(shared / "inputs.npz", *inputs.values())
        request = {
            "saved_model": str(folder / SAVED_MODEL) if written.saved_model else None,
            "keras": str(folder / KERAS_FILE) if written.keras == KERAS_FILE else None,
            "library": library,
            "beside": list(written.beside),
            "batch": _BATCH,
            "arrays": list(given),
            "inputs": list(inputs),
        }
        (shared / "request.json").write_text(json.dumps(request))
        found = _answer(shared, library, log)
    expected = served.answers(run)
    answers, outputs = (_of(found, side) for side in ("saved_model/", "keras/"))
    compared = {"SavedModel": compare(expected, answers, drawn)} if answers else {}
    if "keras" in found:
        compared[KERAS_FILE] = compare(expected, served.answers(found["keras"]), drawn)
    elif outputs:
        compared[KERAS_FILE] = compare(expected, served.answers(outputs), drawn)
    return compared


def _of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Returns the arrays whose name begins with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _answer(shared: Path, library: str, log: Path) -> dict[str, Array]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_OF_THE_MESH)}
    # This process holds the memory of the accelerators.
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    environment |= {"KERAS_BACKEND": "jax"} if library == "keras" else {"TF_USE_LEGACY_KERAS": "1"}
    command = [sys.executable, "-m", "runner.export.reload", str(shared)]
    with log.open("ab") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise EngineError(f"the export can't be loaded again: its process exited {done.returncode}; see {log}")
    with np.load(shared / "answer.npz", allow_pickle=False) as answer:
        return {key: answer[key] for key in answer.files}
