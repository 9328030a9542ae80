"""Writes a plain model: a SavedModel that takes a dataset's arrays as they are, and a file of Keras's own."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from runner.arrays import Tensor
from runner.engine.base import PlainModel
from runner.errors import describe
from runner.export.signature import NAME, Served
from runner.host.late import late
from runner.task import namespace
from runner.task.base import named_outputs

if TYPE_CHECKING:
    import jax
    import keras
    import tensorflow as tf
else:  # of an export of a JAX run's Keras file alone, TensorFlow may not be installed; and the reverse
    jax = late("jax")
    keras = late("keras")
    tf = late("tensorflow")

_HUB = "keras_hub"
_CONFIG = "config.json"  # in a Keras file, which is a zip archive
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in the words of its own error
_FUNCTIONS = ("function", "__lambda__")  # what Keras calls a function that is not its own
SAVED_MODEL = "saved_model"
KERAS_FILE = "model.keras"
WEIGHTS_FILE = "model.weights.h5"


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
      saved_model: whether there is a SavedModel.
      keras: name of the Keras file; None where there is none.
      left_out: what is not there, and why, a line each.
      beside: packages that must be imported before the Keras file is loaded.
    """

    saved_model: bool
    keras: str | None
    left_out: tuple[str, ...]
    beside: tuple[str, ...] = ()


def write_model(plain: PlainModel, served: Served, folder: Path, *, convert: bool, tensorflow: bool) -> Written:
    """Writes what can be written of a model.

    Args:
      plain: the model.
      served: what it takes and answers.
      folder: gets `saved_model/` and `model.keras` or `model.weights.h5`.
      convert: whether TensorFlow's AutoGraph may rewrite the layers, as users' own may need.
      tensorflow: whether it is installed.
    """
    left_out = []
    if not tensorflow:
        left_out.append("SavedModel and MLflow model: tensorflow is not installed")
    elif plain.package == "keras":
        _from_keras3(plain, served, folder / SAVED_MODEL)
    else:
        _from_tensorflow(plain, served, folder / SAVED_MODEL, convert)
    if plain.keras is None:
        return Written(tensorflow, None, (*left_out, f"{KERAS_FILE}: {plain.why}"))
    own = own_layers(plain)
    if own:  # such a file would load only beside the code of these classes
        classes = ", ".join(own)
        left_out.append(f"{KERAS_FILE}: {plain.package} has no {classes}; {WEIGHTS_FILE} holds the weights")
        plain.keras.save_weights(folder / WEIGHTS_FILE)
        return Written(tensorflow, WEIGHTS_FILE, tuple(left_out))
    why = _save(plain, folder / KERAS_FILE)
    if why:
        left_out.append(f"{KERAS_FILE}: {why}; {WEIGHTS_FILE} holds the weights")
        plain.keras.save_weights(folder / WEIGHTS_FILE)
        return Written(tensorflow, WEIGHTS_FILE, tuple(left_out))
    return Written(tensorflow, KERAS_FILE, tuple(left_out), tuple(packages_beside(plain)))


def _save(plain: PlainModel, path: Path) -> str:
    """Writes a Keras file, unless it would not load without the user's code; returns why, empty where it is written.

    A model of Keras's own layers may hold a user's regularizer, initializer, constraint or function, which may not say
    either what it is made with.
    """
    try:
        plain.keras.save(path)
    except Exception as error:  # whatever an object's own `get_config` raises
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
    """Yields the names of what a Keras file's config takes from other packages than those that are known."""
    if isinstance(config, list):
        for value in config:
            yield from _foreign(value, known)
    if not isinstance(config, dict):
        return
    name = config.get("class_name")
    if name in _FUNCTIONS:
        function = config.get("config")
        name = function if isinstance(function, str) else "lambda"
        # Of a function that is registered, as KerasHub's are, the name before the sign is its package's.
        if ">" not in name or name.partition(">")[0] not in known:
            yield name
    elif name is not None and "registered_name" in config and not _is_known(config, known):
        yield str(name)
    for value in config.values():
        yield from _foreign(value, known)


def _is_known(config: Mapping[str, object], known: Collection[str]) -> bool:
    """Tells whether an object in a Keras file's config is found where the file is loaded."""
    module = config.get("module")
    if module is None:  # Keras leaves it out of what is not its own
        return config.get("registered_name") is None
    return str(module).partition(".")[0] in (*known, "builtins")


def own_layers(plain: PlainModel) -> list[str]:
    """Returns the names of a model's classes that its Keras does not have, in alphabetical order."""
    layers = plain.keras._flatten_layers()
    known = tuple(f"{package}." for package in (plain.package, *packages_beside(plain)))
    own = [layer for layer in layers if not type(layer).__module__.startswith(known)]
    return sorted({type(layer).__name__ for layer in own})


def packages_beside(plain: PlainModel) -> list[str]:
    """Returns the packages beside its Keras that must be imported before a model's file can be loaded: KerasHub."""
    of_hub = plain.package == "keras" and any(
        type(layer).__module__.startswith(f"{_HUB}.") for layer in plain.keras._flatten_layers()
    )
    return [_HUB] if of_hub else []


def _signature(served: Served) -> dict[str, tf.TensorSpec]:
    specs = served.inputs.items()
    return {name: tf.TensorSpec((None, *spec.shape), spec.dtype, name=name) for name, spec in specs}


def answers(plain: PlainModel, served: Served, ops: ModuleType, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns what a served model answers, by name, in float32 and integers."""
    xp = namespace.of(ops)
    outputs = plain.model(served.model_inputs(xp, arrays), training=False)
    if isinstance(outputs, Mapping | list | tuple):
        outputs = {name: xp.cast(each, "float32") for name, each in named_outputs(outputs).items()}
    else:
        outputs = xp.cast(outputs, "float32")
    return served.spec.task.predictions(xp, outputs)


def _from_tensorflow(plain: PlainModel, served: Served, path: Path, convert: bool) -> None:
    def answer(**arrays: tf.Tensor) -> dict[str, tf.Tensor]:
        found = answers(plain, served, tf, arrays)
        return {name: tf.cast(each, tf.int64) if each.dtype.is_integer else each for name, each in found.items()}

    module = tf.Module()
    module.weights = list(plain.model.variables)  # what the function reads must be held by what is saved
    module.answer = tf.function(answer, autograph=convert)
    serve = module.answer.get_concrete_function(**_signature(served))
    tf.saved_model.save(module, str(path), signatures={NAME: serve})


def _from_keras3(plain: PlainModel, served: Served, path: Path) -> None:
    """Writes a Keras 3 model of the JAX backend: XLA's own program in a TensorFlow function."""

    def answer(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return answers(plain, served, jax.numpy, arrays)

    archive = keras.export.ExportArchive()
    archive.track(plain.model)
    platforms = {"native_serialization_platforms": ("cpu", "cuda")}  # else it runs where it was written alone
    archive.add_endpoint("serve", answer, input_signature=[_signature(served)], jax2tf_kwargs=platforms)
    archive.write_out(str(path), verbose=False)
