"""The exported model as MLflow serves it. MLflow keeps this file with the model; it needs TensorFlow alone."""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np


class ServedModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Raw images in, logits, probabilities and classes out."""

    def load_context(self, context: Any) -> None:
        """Loads the SavedModel."""
        import tensorflow as tf

        self._model = tf.saved_model.load(context.artifacts["saved_model"])  # held: the signature does not hold it
        self._serve = self._model.signatures["serving_default"]

    # Without a type on model_input: MLflow would take it for a schema of its own.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Predicts.

        Args:
          context: MLflow's.
          model_input: uint8 (batch, height, width, channel).
          params: none are known.

        Returns:
          `logits` and `probabilities`, float32 (batch, classes), and `class`, int64 (batch,).
        """
        import tensorflow as tf

        del context, params
        answer = self._serve(image=tf.constant(np.asarray(model_input, np.uint8)))
        return {name: value.numpy() for name, value in answer.items()} | {
            "class": answer["class"].numpy().astype(np.int64)  # int32 of a JAX model
        }


mlflow.models.set_model(ServedModel())
