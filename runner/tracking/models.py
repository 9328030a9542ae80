"""Logs a Keras model in MLflow, with pinned requirements and without loading it again."""

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

_ROWS = 8  # of the example that the signature is taken from
_BACKENDS = {"jax": ("jax", "jaxlib")}  # Keras 3's backend -> its distributions, where they have other names
_MODULE_MAP = "_MODULES_TO_PACKAGES"  # of mlflow.utils.requirements_utils; None until it is first used


def log_keras_model(store: Store, run_id: str, model: Predicts, example: Example, *, name: str, step: int) -> str:
    """Stores a model as a logged model of a run.

    Loading a tf_keras model back needs TF_USE_LEGACY_KERAS=1, as training it did.

    Args:
      store: where the run is.
      run_id: the run.
      model: a built, single-device Keras model (tf_keras or Keras 3).
      example: a batch that it accepts.
      name: the logged model's name.
      step: the training step it is from; the metrics of that step are shown beside the model.

    Returns:
      The model's URI, as `models:/m-...`.
    """
    rows = (
        {name: array[:_ROWS] for name, array in example.items()} if isinstance(example, Mapping) else example[:_ROWS]
    )
    is_legacy = _is_tf_keras(model)
    flavor = importlib.import_module("mlflow.tensorflow" if is_legacy else "mlflow.keras")
    with pointed_at(store.uri), _packages_unlisted():
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
def _packages_unlisted() -> Iterator[None]:
    """Keeps MLflow from reading the file lists of all installed packages while the context lasts.

    It compares a model's requirements with what is installed. Ours are made of what is installed, by the names of the
    packages, so the map from modules to packages, which costs half a second of CPU time, is not needed.
    """
    before = getattr(requirements_utils, _MODULE_MAP, {})
    if before is not None:  # it is made already, or this version of MLflow has no such map
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
    """Points MLflow's global state at a store for a while; it writes its own variable into the environment."""
    before = mlflow.get_tracking_uri()
    variable = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)
        if variable is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)
        else:
            os.environ["MLFLOW_TRACKING_URI"] = variable
