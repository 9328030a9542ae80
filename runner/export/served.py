"""The exported model as MLflow serves it. MLflow stores this file with the model; it needs only TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlflow
import numpy as np
import tensorflow as tf


class ServedModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Takes the dataset's arrays, returns the task's answers."""

    def load_context(self, context: Any) -> None:
        """Loads the SavedModel."""
        # The model must stay referenced: its signature does not keep it alive.
        self._model = tf.saved_model.load(context.artifacts["saved_model"])
        self._serve = self._model.signatures["serving_default"]
        self._inputs = self._serve.structured_input_signature[1]

    # Without a type on model_input, which MLflow would take for a schema of its own.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Predicts.

        Args:
          context: MLflow's.
          model_input: arrays (batch, ...) by name; for a model with one input also the array alone.
          params: ignored.

        Returns:
          Answers by name, float32 and int64, each (batch, ...).
        """
        del context, params
        has_names = isinstance(model_input, Mapping)
        tensors = {}
        for name, spec in self._inputs.items():
            array = np.asarray(model_input[name] if has_names else model_input)
            tensors[name] = tf.constant(array.astype(spec.dtype.name))
        answers = {}
        for name, tensor in self._serve(**tensors).items():
            answer = tensor.numpy()
            # A JAX model answers int32, and the signature promises int64.
            answers[name] = answer.astype(np.int64) if np.issubdtype(answer.dtype, np.integer) else answer
        return answers


mlflow.models.set_model(ServedModel())
