"""Loads an export in a fresh process and predicts: `python -m runner.export.reload FOLDER`.

A SavedModel needs TensorFlow for that, and nothing else: neither DTensor nor Keras nor this package's layers.

FOLDER holds request.json, see `runner.export.check`, and images.npy, uint8 (N, H, W, C); it gets answer.npz.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]


def main() -> None:
    """Answers the request in the folder that the command line names."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    images = np.load(folder / "images.npy", mmap_mode="r")
    parts = [images[start : start + request["batch"]] for start in range(0, len(images), request["batch"])]
    found: Arrays = {}
    if request["saved_model"]:
        found |= saved_model(request["saved_model"], parts)
    if request["keras"]:
        found["keras"] = keras_file(request["keras"], request["library"], parts)
    np.savez(folder / "answer.npz", **found)  # type: ignore[arg-type]


def saved_model(path: str, parts: list[npt.NDArray[np.uint8]]) -> Arrays:
    """Returns a SavedModel's logits, probabilities (N, C) and classes (N,), and which modules were loaded for them."""
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serving_default"]
    answers = [serve(image=tf.constant(part)) for part in parts]
    found = {name: np.concatenate([answer[name].numpy() for answer in answers]) for name in answers[0]}
    heavy = [name for name in ("tf_keras", "runner.engine.dtensor.environment", "runner.model") if name in sys.modules]
    return {**found, "loaded": np.array(heavy, str)}


def keras_file(path: str, library: str, parts: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
    """Returns the logits (N, C) of a whole model in a file of Keras's own, with images scaled here."""
    keras = __import__(library)
    model = keras.models.load_model(path)
    scaled = (part.astype(np.float32) / np.float32(255) for part in parts)
    return np.concatenate([np.asarray(model(part, training=False), np.float32) for part in scaled])


if __name__ == "__main__":
    main()
