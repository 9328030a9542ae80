"""Logs an export in MLflow as a model that `mlflow models predict` and pyfunc take."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from runner.tracking.models import pinned, pointed_at
from runner.tracking.store import Store

NAME = "export"
_CODE = Path(__file__).with_name("served.py")


def log_saved_model(
    store: Store, run_id: str, path: Path, shape: Sequence[int], class_names: Sequence[str], *, step: int
) -> str:
    """Stores a SavedModel as a logged model of a run.

    Args:
      store: where the run is.
      run_id: the run.
      path: the SavedModel.
      shape: (height, width, channel) of an image.
      class_names: in label order, kept as metadata.
      step: the training step it is from.

    Returns:
      The model's URI, as `models:/m-...`.
    """
    images = TensorSpec(np.dtype("uint8"), (-1, *shape))
    rows = (-1, len(class_names))
    answers = [TensorSpec(np.dtype("float32"), rows, name) for name in ("logits", "probabilities")]
    answers.append(TensorSpec(np.dtype("int64"), (-1,), "class"))
    with pointed_at(store.uri), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*input example was not provided")  # the signature is exact
        logged = store.client.create_logged_model(store.experiment_id, name=NAME, source_run_id=run_id)
        info = Model.log(
            artifact_path=None,
            name=NAME,
            flavor=pyfunc,
            python_model=str(_CODE),
            artifacts={"saved_model": str(path)},
            model_id=logged.model_id,
            run_id=run_id,
            step=step,
            signature=ModelSignature(Schema([images]), Schema(answers)),
            pip_requirements=pinned(["mlflow", "tensorflow", "numpy"]),
            metadata={"class_names": list(class_names)},
        )
    return str(info.model_uri)
