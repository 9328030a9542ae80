"""Writes a plain model, as a SavedModel that takes a dataset's raw arrays and as a Keras file, into its folder."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.arrays import Tensor
from runner.arrays import of as array_functions
from runner.engine.base import PlainModel
from runner.errors import in_one_line
from runner.host.late import late
from runner.task.base import named_outputs
from runner.train.export.signature import NAME, Served

if TYPE_CHECKING:
    import jax
    import keras
    import tensorflow as tf
    from jax import export

    from runner.engine.jax import private
else:
    # To write a JAX run's Keras file, TensorFlow may not be installed; and the reverse.
    jax = late("jax")
    keras = late("keras")
    tf = late("tensorflow")
    export = late("jax.export")
    private = late("runner.engine.jax.private")

_LONGEST = 300  # characters of a reason
# The memory address in an object's repr, which says nothing to a user and differs each time.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

SAVED_MODEL = "saved_model"
# Files of the program of a Keras 3 model: what JAX computes, and the values of the model's variables.
PROGRAM_FILE = "answer.stablehlo"
VALUES_FILE = "values.npz"
KERAS_FILE = "model.keras"


def write_model(plain: PlainModel, served: Served, folder: Path, *, convert: bool, tensorflow: bool) -> str | None:
    """Writes a model as `saved_model/`, which needs `tensorflow`, and as `model.keras`, if it can be written so.

    `convert`: whether TensorFlow's AutoGraph may rewrite the layers, as users' own layers may need.

    Returns:
      Why there is no `model.keras`; None: there is one.
    """
    if tensorflow and plain.package == "keras":
        _from_keras3(plain, served, folder / SAVED_MODEL)
    elif tensorflow:
        _from_tensorflow(plain, served, folder / SAVED_MODEL, convert)
    try:
        plain.keras.save(folder / KERAS_FILE)
    except Exception as error:
        # A user's object may raise anything in its `get_config`.
        return _without_keras(folder, error)
    return None


def loaded_keras(plain: PlainModel, folder: Path) -> tuple[Any, str | None]:
    """Returns the model of the Keras file, loaded again; or None and why not, and removes the file.

    A user's function or class may have no name by which Keras finds it.
    """
    try:
        return importlib.import_module(plain.package).models.load_model(folder / KERAS_FILE), None
    except Exception as error:
        # Keras shares no class of errors with what a user's object raises.
        return None, _without_keras(folder, error)


def _without_keras(folder: Path, error: Exception) -> str:
    (folder / KERAS_FILE).unlink(missing_ok=True)
    # Keras puts each level of a model around the error that says why.
    reason = in_one_line(f"{type(error).__name__}: {str(error).rpartition('Exception encountered: ')[2]}")
    return f"the model can't be written as a whole ({_ADDRESS.sub('', reason[:_LONGEST])})"


def _signature(served: Served) -> dict[str, tf.TensorSpec]:
    specs = served.inputs.items()
    return {name: tf.TensorSpec((None, *spec.shape), spec.dtype, name=name) for name, spec in specs}


def answers(plain: PlainModel, served: Served, ops: ModuleType, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a served model's answers, by name, in float32 and integers."""
    xp = array_functions(ops)
    outputs = plain.model(served.model_inputs(xp, arrays), training=False)
    if isinstance(outputs, Mapping | list | tuple):
        outputs = {name: xp.cast(output, "float32") for name, output in named_outputs(outputs).items()}
    else:
        outputs = xp.cast(outputs, "float32")
    return served.spec.task.predictions(xp, outputs)


def _from_tensorflow(plain: PlainModel, served: Served, path: Path, convert: bool) -> None:
    def answer(**arrays: tf.Tensor) -> dict[str, tf.Tensor]:
        promised = answers(plain, served, tf, arrays)
        # The signature promises int64.
        for name, x in list(promised.items()):
            if x.dtype.is_integer:
                promised[name] = tf.cast(x, tf.int64)
        return promised

    module = tf.Module()
    # The saved object must own every variable that the function reads.
    module.weights = list(plain.model.variables)
    module.answer = tf.function(answer, autograph=convert)
    serve = module.answer.get_concrete_function(**_signature(served))
    tf.saved_model.save(module, str(path), signatures={NAME: serve})


def _from_keras3(plain: PlainModel, served: Served, path: Path) -> None:
    """Writes a Keras 3 model of the JAX backend: XLA's own program in a TensorFlow function."""

    def answer(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return answers(plain, served, jax.numpy, arrays)

    archive = keras.export.ExportArchive()
    archive.track(plain.model)
    # Without this the program runs only on the kind of device that it was written on.
    platforms = {"native_serialization_platforms": ("cpu", "cuda")}
    with private.readable_by_tensorflow():
        archive.add_endpoint("serve", answer, input_signature=[_signature(served)], jax2tf_kwargs=platforms)
        archive.write_out(str(path), verbose=False)


def write_program(plain: PlainModel, served: Served, folder: Path) -> None:
    """Writes a Keras 3 model as a program of XLA that JAX runs without Keras, TensorFlow and the model's code."""
    variables = [*plain.model.trainable_variables, *plain.model.non_trainable_variables]

    def answer(values: list[Tensor], arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return answers(plain, served, jax.numpy, arrays)

    values = [np.asarray(variable.value) for variable in variables]
    (batch,) = export.symbolic_shape("batch")
    arrays = {name: jax.ShapeDtypeStruct((batch, *spec.shape), spec.dtype) for name, spec in served.inputs.items()}
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    program = export.export(jax.jit(answer), platforms=("cpu", "cuda"))(shapes, arrays)
    folder.mkdir()
    (folder / PROGRAM_FILE).write_bytes(program.serialize())
    np.savez(folder / VALUES_FILE, *values)
