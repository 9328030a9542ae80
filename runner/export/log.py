"""Logs an export in MLflow as a model for `mlflow models predict` and pyfunc."""

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
      store: the store of the run.
      run_id: of the run.
      path: the SavedModel.
      served: its signature; the names of categories and columns are kept as metadata.
      answers: specs of its answers, by name.
      step: training step of the model.

    Returns:
      The model's URI, such as `models:/m-...`.
    """
    # A single input has no name in the signature, so that an array can be passed as it is.
    has_names = len(served.inputs) > 1
    inputs = [_tensor(spec, name if has_names else None) for name, spec in served.inputs.items()]
    outputs = [_tensor(spec, name) for name, spec in answers.items()]
    with pointed_at(store.uri), warnings.catch_warnings():
        # MLflow would infer the signature from an example. This one is exact already.
        warnings.filterwarnings("ignore", "(?s).*input example was not provided")
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
    # -1: any batch size.
    return TensorSpec(np.dtype(spec.dtype), (-1, *spec.shape), name)
