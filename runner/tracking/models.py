"""Logs a Keras model with pinned requirements, without loading it again."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping

import mlflow
from mlflow.models import Model, infer_signature
from mlflow.utils import requirements_utils

from runner.host.versions import installed
from runner.tracking.base import Example, Predicts
from runner.tracking.store import Store

# Rows of the example from which the signature is inferred. Its dtypes and shapes don't depend on how many there are,
# and the model has to predict them.
_SIGNATURE_ROWS = 8
# A private cache of mlflow.utils.requirements_utils, which is None until it is first used.
_MODULE_MAP = "_MODULES_TO_PACKAGES"
# Distributions of a Keras 3 backend that are not called as it is.
_BACKENDS = {"jax": ("jax", "jaxlib")}


def log_keras_model(store: Store, run_id: str, model: Predicts, example: Example, *, name: str, step: int) -> str:
    """Stores a model as a logged model of a run.

    To load a tf_keras model, set TF_USE_LEGACY_KERAS=1, as for training it.

    Args:
      store: store of the run.
      run_id: the run.
      model: a built, single-device Keras model (tf_keras or Keras 3).
      example: a batch that the model accepts.
      name: name of the logged model.
      step: the training step that the model is from; MLflow shows the metrics of that step with the model.

    Returns:
      The model's URI, such as `models:/m-...`.
    """
    rows: Example
    if isinstance(example, Mapping):
        rows = {name: array[:_SIGNATURE_ROWS] for name, array in example.items()}
    else:
        rows = example[:_SIGNATURE_ROWS]
    is_legacy = _is_tf_keras(model)
    flavor = importlib.import_module("mlflow.tensorflow" if is_legacy else "mlflow.keras")
    with pointed_at(store.uri), _without_package_scan():
        logged = store.client.create_logged_model(store.experiment_id, name=name, source_run_id=run_id)
        info = Model.log(
            artifact_path=None,
            name=name,
            flavor=flavor,
            model=model,
            model_id=logged.model_id,
            run_id=run_id,
            step=step,
            signature=infer_signature(rows, model.predict(rows, verbose=0)),
            pip_requirements=pinned(_packages(is_legacy=is_legacy)),
        )
    return str(info.model_uri)


@contextlib.contextmanager
def _without_package_scan() -> Iterator[None]:
    """Keeps MLflow from reading the file lists of all installed packages.

    That costs half a second of CPU time.

    MLflow maps modules to packages in order to compare a model's requirements with what is installed. Ours are the
    installed versions, under the names of their packages, so the map is not needed.
    """
    cached = getattr(requirements_utils, _MODULE_MAP, {})
    if cached is not None:
        # The map was made before, or this version of MLflow has none.
        yield
        return
    setattr(requirements_utils, _MODULE_MAP, {})
    try:
        yield
    finally:
        setattr(requirements_utils, _MODULE_MAP, None)


def pinned(packages: list[str]) -> list[str]:
    """Returns `name==version` for those of the packages that are installed."""
    return [f"{name}=={version}" for name, version in installed(packages).items()]


def _is_tf_keras(model: object) -> bool:
    return any(base.__module__.startswith("tf_keras") for base in type(model).__mro__)


def _packages(*, is_legacy: bool) -> list[str]:
    if is_legacy:
        return ["mlflow", "tensorflow", "tf-keras", "numpy"]
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    return ["mlflow", "keras", *_BACKENDS.get(backend, (backend,)), "numpy"]


@contextlib.contextmanager
def pointed_at(uri: str) -> Iterator[None]:
    """Points MLflow's global state at a store while the context lasts.

    `set_tracking_uri` also writes into the environment, which is restored too: it would reach child processes.
    """
    previous_uri = mlflow.get_tracking_uri()
    previous_variable = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(previous_uri)
        if previous_variable is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)
        else:
            os.environ["MLFLOW_TRACKING_URI"] = previous_variable
