"""Logs a run's model in MLflow, for `mlflow models serve` and pyfunc: the same for a run and for an export of it."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.utils import requirements_utils

from runner.arrays import Tensor
from runner.data.base import Array, ArraySpec
from runner.engine.base import PlainModel
from runner.host.late import late
from runner.host.libraries import installed
from runner.tracking.store import Store
from runner.train.export.signature import Served
from runner.train.export.write import KERAS_FILE, SAVED_MODEL, answers, write_model, write_program

if TYPE_CHECKING:
    import tensorflow as tf
    from jax import numpy as jnp
else:
    tf = late("tensorflow")
    jnp = late("jax.numpy")

_CODE = Path(__file__).with_name("served.py")
_PROGRAM = "program"
# Examples of the logged input.
_ROWS = 2
# A private cache of mlflow.utils.requirements_utils, which is None until it is first used.
_MODULE_MAP = "_MODULES_TO_PACKAGES"
# Distributions that the served model imports beside MLflow and NumPy, by the package of its Keras.
_LIBRARIES = {"keras": ("jax", "jaxlib"), "tf_keras": ("tensorflow",)}


def log_model(
    store: Store,
    run_id: str,
    plain: PlainModel,
    served: Served,
    examples: Mapping[str, Array],
    *,
    name: str,
    step: int,
    convert: bool,
) -> str:
    """Stores a model as a logged model of a run; returns its URI, such as `models:/m-...`.

    Args:
      served: the signature; the names of categories and columns are kept as metadata.
      examples: (n, ...) of each input, not standardized.
      step: training step of the model; MLflow shows the metrics of that step with it.
      convert: see `write_model`.
    """
    names = served.names()
    versions = installed(("mlflow", *_LIBRARIES[plain.package], "numpy"))
    inputs, example = _inputs(served, examples)
    on_jax = plain.package == "keras"
    if on_jax:
        ops = jnp
        as_tensor = jnp.asarray
    else:  # only here: naming `tf.constant` imports TensorFlow, which takes seconds
        ops = tf
        as_tensor = tf.constant
    tensors: dict[str, Tensor] = {}
    for key, spec in served.inputs.items():
        tensors[key] = as_tensor(examples[key][:_ROWS].astype(spec.dtype))
    outputs: list[TensorSpec] = []
    for key, answer in answers(plain, served, ops, tensors).items():
        outputs.append(_answer(key, np.asarray(answer)))
    with tempfile.TemporaryDirectory(prefix="runner-model-") as created:
        folder = Path(created)
        no_keras = write_model(plain, served, folder, convert=convert, tensorflow=not on_jax)
        # The Keras file is for notebooks, see `runner.cli.notebook`.
        parts = [SAVED_MODEL]
        if on_jax:
            write_program(plain, served, folder / _PROGRAM)
            parts = [_PROGRAM]
        if no_keras is None:
            parts.append(KERAS_FILE)
        with store.pointed_at(), _without_package_scan(), _quiet():
            logged = store.client.create_logged_model(store.experiment_id, name=name, source_run_id=run_id)
            info = Model.log(
                artifact_path=None,
                name=name,
                flavor=pyfunc,
                python_model=str(_CODE),
                artifacts={part: str(folder / part) for part in parts},
                model_config={"names": names},
                model_id=logged.model_id,
                run_id=run_id,
                step=step,
                signature=ModelSignature(Schema(inputs), Schema(outputs)),
                input_example=example,
                pip_requirements=[f"{name}=={version}" for name, version in versions.items()],
                metadata={"names": names},
            )
    return str(info.model_uri)


def _inputs(
    served: Served, examples: Mapping[str, Array]
) -> tuple[list[ColSpec] | list[TensorSpec], pd.DataFrame | dict[str, Array] | Array]:
    """Returns the signature's inputs and an example of them: the columns of a table if each input is one number.

    MLflow reads CSV for columns only.
    """
    specs = served.inputs
    if all(spec.shape == () for spec in specs.values()):
        columns: list[ColSpec] = []
        values: dict[str, Array | list[str]] = {}
        for name, spec in specs.items():
            kind, values[name] = _column(spec, examples[name])
            columns.append(ColSpec(kind, name))
        return columns, pd.DataFrame(values)
    rows = {name: examples[name][:_ROWS].astype(spec.dtype) for name, spec in specs.items()}
    if len(specs) > 1:
        return [_tensor(spec, name) for name, spec in specs.items()], rows
    # A single input has no name in the signature, so that an array can be passed as it is.
    ((name, spec),) = specs.items()
    return [_tensor(spec, None)], rows[name]


def _column(spec: ArraySpec, values: Array) -> tuple[DataType, Array | list[str]]:
    """Returns a column's type and the first values of it, as a user's file has them."""
    first = values[:_ROWS]
    if spec.names:
        return DataType.string, [spec.names[index] for index in first]
    # A column of ids, for an embedding.
    if np.issubdtype(spec.dtype, np.integer):
        return DataType.long, first.astype(np.int64)
    # Not the type of the first values: whole numbers now may have fractions in a request, which `long` rejects.
    return DataType.double, first.astype(np.float64)


def _answer(name: str, answer: Array) -> TensorSpec:
    dtype = "int64" if np.issubdtype(answer.dtype, np.integer) else "float32"
    return _tensor(ArraySpec(answer.shape[1:], dtype), name)


def _tensor(spec: ArraySpec, name: str | None) -> TensorSpec:
    # -1: any batch size.
    return TensorSpec(np.dtype(spec.dtype), (-1, *spec.shape), name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides MLflow's hints about the signature, which is exact already."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _without_package_scan() -> Iterator[None]:
    """Keeps MLflow from reading the file lists of all installed packages, which costs half a second of CPU time.

    MLflow compares a model's requirements with what is installed; ours are the installed versions.
    """
    cached = getattr(requirements_utils, _MODULE_MAP, {})
    setattr(requirements_utils, _MODULE_MAP, cached or {})
    try:
        yield
    finally:
        setattr(requirements_utils, _MODULE_MAP, cached)
