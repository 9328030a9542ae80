"""Loads an export in a fresh process and predicts: `python -m runner.export.reload FOLDER`.

For a SavedModel this takes only TensorFlow: neither DTensor nor Keras nor this package's layers.

FOLDER has request.json, see `runner.export.check`, arrays.npz, the inputs of the SavedModel, and inputs.npz, the
inputs of the model; it gets answer.npz.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from runner.task.base import named_outputs

Arrays = dict[str, npt.NDArray[Any]]
Name = TypeVar("Name", str, str | None)


def main() -> None:
    """Answers the request in the folder that the command line names."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    reply: Arrays = {}
    if request["saved_model"]:
        arrays = read(folder / "arrays.npz", request["arrays"])
        for name, answer in saved_model(request["saved_model"], arrays, request["batch"]).items():
            reply[f"saved_model/{name}"] = answer
    if request["keras"]:
        inputs = read(folder / "inputs.npz", request["inputs"])
        # Keras finds the classes of another package by name once the package is imported.
        for package in request["beside"]:
            importlib.import_module(package)
        outputs = keras_file(request["keras"], request["library"], inputs, request["batch"])
        for key, output in outputs.items():
            reply["keras" if key is None else f"keras/{key}"] = output
    np.savez(folder / "answer.npz", **reply)  # type: ignore[arg-type]


def read(path: Path, names: list[str]) -> Arrays:
    """Returns arrays by name; the file has them by number, because a name may be one of NumPy's own parameters."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[f"arr_{number}"] for number, name in enumerate(names)}


def parts(arrays: Arrays, batch: int) -> Iterator[Arrays]:
    """Yields the arrays of `batch` examples at a time."""
    examples = len(next(iter(arrays.values())))
    for start in range(0, examples, batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def saved_model(path: str, arrays: Arrays, batch: int) -> Arrays:
    """Returns a SavedModel's answers by name, each (N, ...)."""
    tf = importlib.import_module("tensorflow")
    # The model must stay referenced: its signature does not keep it alive.
    loaded = tf.saved_model.load(path)
    serve = loaded.signatures["serving_default"]
    answers: dict[str, list[npt.NDArray[Any]]] = {}
    for part in parts(arrays, batch):
        tensors = {name: tf.constant(array) for name, array in part.items()}
        for name, answer in serve(**tensors).items():
            answers.setdefault(name, []).append(answer.numpy())
    return _joined(answers)


def keras_file(path: str, library: str, inputs: Arrays, batch: int) -> dict[str | None, npt.NDArray[np.float32]]:
    """Returns the outputs (N, ...) of the model in a Keras file.

    They are by name if the model has several; a single one is at None.
    """
    model = importlib.import_module(library).models.load_model(path)
    outputs_by_name: dict[str | None, list[npt.NDArray[np.float32]]] = {}
    for part in parts(inputs, batch):
        outputs = model(part if len(part) > 1 else next(iter(part.values())), training=False)
        is_several = isinstance(outputs, dict | list | tuple)
        for name, output in named_outputs(outputs).items():
            key = name if is_several else None
            outputs_by_name.setdefault(key, []).append(np.asarray(output, np.float32))
    return _joined(outputs_by_name)


def _joined(parts_by_name: Mapping[Name, list[npt.NDArray[Any]]]) -> dict[Name, npt.NDArray[Any]]:
    return {name: np.concatenate(rows) for name, rows in parts_by_name.items()}


if __name__ == "__main__":
    main()
