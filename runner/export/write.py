"""Writes a plain model: as a SavedModel that takes a dataset's raw arrays, and as a Keras file."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from runner.arrays import Tensor
from runner.arrays import of as array_functions
from runner.engine.base import PlainModel
from runner.errors import describe
from runner.export.signature import NAME, Served
from runner.host.late import late
from runner.task.base import named_outputs

if TYPE_CHECKING:
    import jax
    import keras
    import tensorflow as tf
    from jax import export
else:
    # To write a JAX run's Keras file, TensorFlow may not be installed; and the reverse.
    jax = late("jax")
    keras = late("keras")
    tf = late("tensorflow")
    export = late("jax.export")

_HUB = "keras_hub"

# A Keras file is a zip archive with the model's config in this file.
_CONFIG = "config.json"

# The memory address in an object's repr, which says nothing to a user and differs each time.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

# `class_name` of a function that is not Keras's own.
_FUNCTIONS = ("function", "__lambda__")

SAVED_MODEL = "saved_model"
# Files of the program of a Keras 3 model: what JAX computes, and the values of the model's variables.
PROGRAM_FILE = "answer.stablehlo"
VALUES_FILE = "values.npz"
KERAS_FILE = "model.keras"
WEIGHTS_FILE = "model.weights.h5"


@dataclass(frozen=True)
class Written:
    """The files of an export.

    Attributes:
      saved_model: whether there is a SavedModel.
      keras: name of the Keras file; None if there is none.
      left_out: one line for each file that was not written, with the reason.
    """

    saved_model: bool
    keras: str | None
    left_out: tuple[str, ...]


def write_model(plain: PlainModel, served: Served, folder: Path, *, convert: bool, tensorflow: bool) -> Written:
    """Writes a model in every format that it can be written in.

    Args:
      plain: the model.
      served: its signature.
      folder: gets `saved_model/` and `model.keras` or `model.weights.h5`.
      convert: whether TensorFlow's AutoGraph may rewrite the layers, as users' own layers may need.
      tensorflow: whether TensorFlow is installed.
    """
    left_out: list[str] = []
    if not tensorflow:
        left_out.append("SavedModel and MLflow model: tensorflow is not installed")
    elif plain.package == "keras":
        _from_keras3(plain, served, folder / SAVED_MODEL)
    else:
        _from_tensorflow(plain, served, folder / SAVED_MODEL, convert)
    if plain.keras is None:
        return Written(tensorflow, None, (*left_out, f"{KERAS_FILE}: {plain.why}"))
    # Keras's own format comes last: if only the weights can be saved, the reason is reported.
    why = _write_keras_file(plain, folder / KERAS_FILE)
    if why:
        left_out.append(f"{KERAS_FILE}: {why}; {WEIGHTS_FILE} has the weights")
        plain.keras.save_weights(folder / WEIGHTS_FILE)
        return Written(tensorflow, WEIGHTS_FILE, tuple(left_out))
    return Written(tensorflow, KERAS_FILE, tuple(left_out))


def _write_keras_file(plain: PlainModel, path: Path) -> str:
    """Writes a Keras file if it can be loaded without the user's code; returns why it was not, empty if it was.

    A model of Keras's own layers may have a user's regularizer, initializer, constraint or function. Only the file
    shows that.
    """
    own = own_layers(plain)
    if own:
        return f"{plain.package} has no {', '.join(own)}"
    try:
        plain.keras.save(path)
    except Exception as error:
        # A user's object may raise anything in its `get_config`.
        path.unlink(missing_ok=True)
        return f"the model can't be written as a whole ({_ADDRESS.sub('', describe(error))})"
    with zipfile.ZipFile(path) as saved:
        config = json.loads(saved.read(_CONFIG))
    known = ("keras", plain.package, *packages_beside(plain))
    foreign = sorted(set(_foreign(config, known)))
    if foreign:
        path.unlink()
        return f"{plain.package} has no {', '.join(foreign)}"
    return ""


def _foreign(config: object, known: Collection[str]) -> Iterator[str]:
    """Yields the names of the objects in a Keras file's config that are not of known packages."""
    if isinstance(config, list):
        for value in config:
            yield from _foreign(value, known)
    if not isinstance(config, dict):
        return
    name = config.get("class_name")
    if name in _FUNCTIONS:
        function = config.get("config")
        name = function if isinstance(function, str) else "lambda"
        # A registered function, such as KerasHub's, is named `package>function`.
        if ">" not in name or name.partition(">")[0] not in known:
            yield name
    elif name is not None and "registered_name" in config and not _is_known(config, known):
        yield str(name)
    if config.get("function_type") == "lambda":
        # tf_keras's Lambda, which keeps its function as bytecode and does not load it.
        yield "lambda"
    for value in config.values():
        yield from _foreign(value, known)


def _is_known(config: Mapping[str, object], known: Collection[str]) -> bool:
    """Returns whether an object in a Keras file's config can be found where the file is loaded."""
    module = config.get("module")
    if module is None:
        # Keras leaves it out for what is not its own.
        return config.get("registered_name") is None
    return str(module).partition(".")[0] in (*known, "builtins")


def own_layers(plain: PlainModel) -> list[str]:
    """Returns the names of a model's layer classes that its Keras does not have, in alphabetical order."""
    known = tuple(f"{package}." for package in (plain.package, *packages_beside(plain)))
    names: set[str] = set()
    for layer in plain.keras._flatten_layers():
        if not type(layer).__module__.startswith(known):
            names.add(type(layer).__name__)
    return sorted(names)


def packages_beside(plain: PlainModel) -> list[str]:
    """Returns the packages other than Keras that must be imported before a model's file is loaded: KerasHub."""
    if plain.package != "keras":
        return []
    layers = plain.keras._flatten_layers()
    for layer in layers:
        if type(layer).__module__.startswith(f"{_HUB}."):
            return [_HUB]
    return []


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
        tensors = answers(plain, served, tf, arrays)
        # The signature promises int64.
        return {name: tf.cast(x, tf.int64) if x.dtype.is_integer else x for name, x in tensors.items()}

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
    archive.add_endpoint("serve", answer, input_signature=[_signature(served)], jax2tf_kwargs=platforms)
    archive.write_out(str(path), verbose=False)


def with_values(plain: PlainModel, served: Served) -> tuple[list[keras.Variable], Callable[..., dict[str, Tensor]]]:
    """Returns a Keras 3 model's variables, and its answers as a function of their values and of the arrays by name."""
    variables = [*plain.model.trainable_variables, *plain.model.non_trainable_variables]

    def answer(values: list[Tensor], arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return answers(plain, served, jax.numpy, arrays)

    return variables, answer


def write_program(plain: PlainModel, served: Served, folder: Path) -> None:
    """Writes a Keras 3 model as a program of XLA that JAX runs without Keras, TensorFlow and the model's code.

    Args:
      plain: the model, on JAX.
      served: its signature.
      folder: gets the program and its values.
    """
    variables, answer = with_values(plain, served)
    values = [np.asarray(variable.value) for variable in variables]
    (batch,) = export.symbolic_shape("batch")
    arrays = {name: jax.ShapeDtypeStruct((batch, *spec.shape), spec.dtype) for name, spec in served.inputs.items()}
    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    program = export.export(jax.jit(answer), platforms=("cpu", "cuda"))(shapes, arrays)
    folder.mkdir()
    (folder / PROGRAM_FILE).write_bytes(program.serialize())
    np.savez(folder / VALUES_FILE, *values)
