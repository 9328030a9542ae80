"""Holds an export against the run: the same images through both, in different processes.

Shapes: N images, C classes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.config.errors import EngineError
from runner.engine.base import Array
from runner.export.write import KERAS_FILE, SAVED_MODEL, Written

TOLERANCE = 1e-5
_BATCH = 500
_OF_THE_MESH = ("DTENSOR_", "PJRT_NPROC", "XLA_FLAGS")  # what the engine set for its own process


@dataclass(frozen=True)
class Comparison:
    """How far an export's predictions are from the run's.

    Attributes:
      examples: images compared.
      logits: largest absolute difference of a logit.
      probabilities: largest absolute difference of a probability.
      classes: images whose class differs.
      scale: the run's largest absolute logit, at least 1.
    """

    examples: int
    logits: float
    probabilities: float
    classes: int
    scale: float

    @property
    def equal(self) -> bool:
        """Whether the predictions are the same to 1e-5; logits relative to the largest, as float32 rounds them."""
        near = self.logits <= TOLERANCE * self.scale and self.probabilities <= TOLERANCE
        return near and self.classes == 0  # false for NaN


def softmax(logits: Array) -> Array:
    """Returns float64 probabilities (N, C)."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def compare(run: Array, logits: Array, probabilities: Array, classes: Array) -> Comparison:
    """Compares predictions.

    Args:
      run: logits (N, C) of the run.
      logits: (N, C) of the export.
      probabilities: (N, C) of the export.
      classes: (N,) of the export.

    Raises:
      EngineError: the export gave other shapes.
    """
    if not run.shape == logits.shape == probabilities.shape or classes.shape != run.shape[:1]:
        raise EngineError(f"the export gives logits {list(logits.shape)}, the run {list(run.shape)}")
    return Comparison(
        examples=len(run),
        logits=float(np.abs(run - logits).max()),
        probabilities=float(np.abs(softmax(run) - probabilities).max()),
        classes=int((run.argmax(axis=1) != classes).sum()),
        scale=max(1.0, float(np.abs(run).max())),
    )


def check(folder: Path, written: Written, library: str, images: Array, run: Array, log: Path) -> dict[str, Comparison]:
    """Loads what was written in a fresh process, and compares its predictions with the run's.

    Args:
      folder: of the export.
      written: what is in it.
      library: Keras of its Keras file.
      images: uint8 (N, H, W, channel).
      run: logits (N, C) of the run.
      log: gets what the process prints.

    Returns:
      What was compared, `SavedModel` and `model.keras`, and how.

    Raises:
      EngineError: it can't be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="runner-export-") as name:
        shared = Path(name)
        np.save(shared / "images.npy", images)
        request = {
            "saved_model": str(folder / SAVED_MODEL) if written.saved_model else None,
            "keras": str(folder / KERAS_FILE) if written.keras == KERAS_FILE else None,
            "library": library,
            "batch": _BATCH,
        }
        (shared / "request.json").write_text(json.dumps(request))
        found = _answer(shared, library, log)
    compared = {}
    if "logits" in found:
        compared["SavedModel"] = compare(run, found["logits"], found["probabilities"], found["class"])
    if "keras" in found:
        logits = found["keras"]
        compared[KERAS_FILE] = compare(run, logits, softmax(logits), logits.argmax(axis=1))
    return compared


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
