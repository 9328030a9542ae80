"""A run's model as MLflow serves it. MLflow stores this file with the model; it needs only TensorFlow or only JAX."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import mlflow
import numpy as np


class ServedModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Takes the dataset's arrays, or rows of a table with their names, and returns the task's answers."""

    def load_context(self, context: Any) -> None:
        """Loads the SavedModel, or the program of a model on JAX."""
        self._names = context.model_config["names"]
        if "saved_model" in context.artifacts:
            self._load_saved_model(context.artifacts["saved_model"])
        else:
            self._load_program(Path(context.artifacts["program"]))

    def _load_saved_model(self, path: str) -> None:
        tf = import_module("tensorflow")
        # The model must stay referenced: its signature does not keep it alive.
        self._model = tf.saved_model.load(path)
        serve = self._model.signatures["serving_default"]
        specs = serve.structured_input_signature[1]
        self._dtypes = {name: spec.dtype.name for name, spec in specs.items()}
        self._answer = lambda arrays: serve(**{name: tf.constant(array) for name, array in arrays.items()})

    def _load_program(self, folder: Path) -> None:
        program = import_module("jax.export").deserialize(bytearray((folder / "answer.stablehlo").read_bytes()))
        with np.load(folder / "values.npz", allow_pickle=False) as file:
            values = [file[f"arr_{number}"] for number in range(len(file.files))]
        (_, specs), _ = program.in_tree.unflatten(program.in_avals)
        self._dtypes = {name: spec.dtype.name for name, spec in specs.items()}
        self._answer = lambda arrays: program.call(values, arrays)

    # Without a type on model_input, which MLflow would take for a schema of its own.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Returns the answers by name, float32 and int64, each (batch, ...), for arrays by name or a pandas.DataFrame.

        A model with one input also takes the array alone. Strings of a column of categories are encoded as in the run.
        """
        del context, params
        if not isinstance(model_input, Mapping) and not hasattr(model_input, "columns"):
            model_input = dict.fromkeys(self._dtypes, model_input)
        arrays = {}
        for name, dtype in self._dtypes.items():
            array = np.asarray(model_input[name])
            if array.dtype.kind in "OU":
                array = self._encoded(name, array)
            arrays[name] = array.astype(dtype)
        answers = {}
        for name, tensor in self._answer(arrays).items():  # type: ignore[no-untyped-call]
            answers[name] = np.asarray(tensor)
            # A JAX model answers int32, and the signature promises int64.
            if np.issubdtype(answers[name].dtype, np.integer):
                answers[name] = answers[name].astype(np.int64)
        return answers

    def _encoded(self, name: str, texts: Any) -> Any:
        """Returns the index of each category."""
        indices = {category: index for index, category in enumerate(self._names.get(name, ()))}
        unknown = sorted(set(map(str, texts.flat)) - set(indices))
        if unknown:
            raise ValueError(f"{name}={unknown[0]}: must be one of the run's categories: {', '.join(indices)[:300]}")
        return np.asarray([indices[str(text)] for text in texts.flat]).reshape(texts.shape)


mlflow.models.set_model(ServedModel())
