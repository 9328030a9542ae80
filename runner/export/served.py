"""The exported model as MLflow serves it. MLflow keeps this file with the model; it needs TensorFlow alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlflow
import numpy as np
import tensorflow as tf


class ServedModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """The dataset's arrays in, the task's answers out."""

    def load_context(self, context: Any) -> None:
        """Loads the SavedModel."""
        self._model = tf.saved_model.load(context.artifacts["saved_model"])  # held: the signature does not hold it
        self._serve = self._model.signatures["serving_default"]
        self._inputs = self._serve.structured_input_signature[1]

    # Without a type on model_input: MLflow would take it for a schema of its own.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Predicts.

        Args:
          context: MLflow's.
          model_input: arrays (batch, ...) by name; of a model of one input, the array alone too.
          params: none are known.

        Returns:
          Answers by name, float32 and int64, each (batch, ...).
        """
        del context, params
        named = isinstance(model_input, Mapping)
        arrays = {name: np.asarray(model_input[name] if named else model_input) for name in self._inputs}
        given = {name: tf.constant(array.astype(self._inputs[name].dtype.name)) for name, array in arrays.items()}
        answers = {name: value.numpy() for name, value in self._serve(**given).items()}
        return {  # a JAX model has int32
            name: value.astype(np.int64) if np.issubdtype(value.dtype, np.integer) else value
            for name, value in answers.items()
        }


mlflow.models.set_model(ServedModel())
