"""Logs an export in MLflow as a model that `mlflow models predict` and pyfunc take."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from runner.data.base import ArraySpec
from runner.export.signature import Served
from runner.tracking.models import pinned, pointed_at
from runner.tracking.store import Store

NAME = "export"
_CODE = Path(__file__).with_name("served.py")


def log_saved_model(
    store: Store, run_id: str, path: Path, served: Served, answers: Mapping[str, ArraySpec], *, step: int
) -> str:
    """Stores a SavedModel as a logged model of a run.

    Args:
      store: where the run is.
      run_id: the run.
      path: the SavedModel.
      served: what it takes; the names of what its arrays count are kept as metadata.
      answers: specs of what it answers, by name.
      step: the training step it is from.

    Returns:
      The model's URI, as `models:/m-...`.
    """
    several = len(served.inputs) > 1  # one input needs no name: an array is passed as it is
    inputs = [_tensor(spec, name if several else None) for name, spec in served.inputs.items()]
    outputs = [_tensor(spec, name) for name, spec in answers.items()]
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
            signature=ModelSignature(Schema(inputs), Schema(outputs)),
            pip_requirements=pinned(["mlflow", "tensorflow", "numpy"]),
            metadata={"names": served.names()},
        )
    return str(info.model_uri)


def _tensor(spec: ArraySpec, name: str | None) -> TensorSpec:
    return TensorSpec(np.dtype(spec.dtype), (-1, *spec.shape), name)
