"""Loads an export in a fresh process and predicts: `python -m runner.export.reload FOLDER`.

A SavedModel needs TensorFlow for that, and nothing else: neither DTensor nor Keras nor this package's layers.

FOLDER holds request.json, see `runner.export.check`, arrays.npz, what the SavedModel takes, and inputs.npz, what the
model takes; it gets answer.npz.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.task.base import named_outputs

Arrays = dict[str, npt.NDArray[Any]]


def main() -> None:
    """Answers the request in the folder that the command line names."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    found: Arrays = {}
    if request["saved_model"]:
        answers = saved_model(request["saved_model"], read(folder / "arrays.npz", request["arrays"]), request["batch"])
        found |= {f"saved_model/{name}": answer for name, answer in answers.items()}
    if request["keras"]:
        inputs = read(folder / "inputs.npz", request["inputs"])
        for package in request["beside"]:  # its classes are known by name once it is imported
            importlib.import_module(package)
        outputs = keras_file(request["keras"], request["library"], inputs, request["batch"])
        found |= {"keras" if name is None else f"keras/{name}": output for name, output in outputs.items()}
    np.savez(folder / "answer.npz", **found)  # type: ignore[arg-type]


def read(path: Path, names: list[str]) -> Arrays:
    """Returns arrays by name; the file has them by number, since any name may be one of NumPy's own."""
    with np.load(path, allow_pickle=False) as held:
        return {name: held[f"arr_{number}"] for number, name in enumerate(names)}


def parts(arrays: Arrays, batch: int) -> Iterator[Arrays]:
    """Yields the arrays of `batch` examples at a time."""
    for start in range(0, len(next(iter(arrays.values()))), batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def saved_model(path: str, arrays: Arrays, batch: int) -> Arrays:
    """Returns a SavedModel's answers by name, each (N, ...)."""
    tf = importlib.import_module("tensorflow")
    loaded = tf.saved_model.load(path)  # held: the signature does not hold it
    serve = loaded.signatures["serving_default"]
    answers = [serve(**{name: tf.constant(part) for name, part in each.items()}) for each in parts(arrays, batch)]
    return {name: np.concatenate([answer[name].numpy() for answer in answers]) for name in answers[0]}


def keras_file(path: str, library: str, inputs: Arrays, batch: int) -> dict[str | None, npt.NDArray[np.float32]]:
    """Returns the outputs (N, ...) of a whole model in a file of Keras's own, for what the model takes.

    They are by name if the model gives several, and the only one is at None.
    """
    model = importlib.import_module(library).models.load_model(path)
    found: dict[str | None, list[npt.NDArray[np.float32]]] = {}
    for each in parts(inputs, batch):
        outputs = model(each if len(each) > 1 else next(iter(each.values())), training=False)
        several = isinstance(outputs, dict | list | tuple)
        for name, output in named_outputs(outputs).items():
            found.setdefault(name if several else None, []).append(np.asarray(output, np.float32))
    return {name: np.concatenate(rows) for name, rows in found.items()}


if __name__ == "__main__":
    main()
