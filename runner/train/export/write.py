"""Writes a plain model, as a SavedModel that takes a dataset's raw arrays and as a Keras file, into its folder.

The folder is written atomically, and never in place of anything but an earlier export.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.arrays import Tensor
from runner.arrays import of as array_functions
from runner.checkpoint.runs import SavedRun
from runner.config.schema import ExportConfig
from runner.engine.base import PlainModel
from runner.errors import EngineError, in_one_line, invalid
from runner.host.late import late
from runner.host.paths import outputs_dir
from runner.task.base import named_outputs
from runner.train.export.signature import NAME, Served

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

_LONGEST = 300  # characters of a reason
# The memory address in an object's repr, which says nothing to a user and differs each time.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

SAVED_MODEL = "saved_model"
# Files of the program of a Keras 3 model: what JAX computes, and the values of the model's variables.
PROGRAM_FILE = "answer.stablehlo"
VALUES_FILE = "values.npz"
KERAS_FILE = "model.keras"
# What was exported, and which files belong to it.
RECORD = "export.json"
_KEY = "export.folder"


@dataclass(frozen=True)
class Written:
    """Whether an export has a SavedModel, and why it has no Keras file; None: it has one."""

    saved_model: bool
    no_keras: str | None


def write_model(plain: PlainModel, served: Served, folder: Path, *, convert: bool, tensorflow: bool) -> Written:
    """Writes a model as `saved_model/`, which needs `tensorflow`, and as `model.keras`, each if it can be written so.

    `convert`: whether TensorFlow's AutoGraph may rewrite the layers, as users' own layers may need.
    """
    if tensorflow and plain.package == "keras":
        _from_keras3(plain, served, folder / SAVED_MODEL)
    elif tensorflow:
        _from_tensorflow(plain, served, folder / SAVED_MODEL, convert)
    if plain.keras is None:
        return Written(tensorflow, plain.why)
    try:
        plain.keras.save(folder / KERAS_FILE)
    except Exception as error:
        # A user's object may raise anything in its `get_config`.
        return Written(tensorflow, _without_keras(folder, error))
    return Written(tensorflow, None)


def loaded_keras(plain: PlainModel, folder: Path, written: Written) -> tuple[Written, Any]:
    """Returns what was written and the model of its Keras file, loaded again; removes a file without a model.

    A user's function or class may have no name by which Keras finds it.
    """
    if written.no_keras is not None:
        return written, None
    try:
        return written, importlib.import_module(plain.package).models.load_model(folder / KERAS_FILE)
    except Exception as error:
        # Keras shares no class of errors with what a user's object raises.
        return Written(written.saved_model, _without_keras(folder, error)), None


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


def target_folder(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export; raises ConfigError if it has other files than an earlier export's."""
    path = outputs_dir() / "exports" / run.id
    if config.folder:
        path = Path(config.folder).expanduser().absolute()
    if path.exists() and not _is_ours(path):
        problem = "must be a new or empty folder, or an earlier export without other files"
        raise invalid(_KEY, path, problem=problem, fix=f"set {_KEY}={path}/export")
    return path


def _is_ours(path: Path) -> bool:
    """Returns whether a folder has no other files than those that an export recorded."""
    if not path.is_dir():
        return False
    try:
        recorded = {RECORD, *map(str, json.loads((path / RECORD).read_text())["files"])}
    except (OSError, ValueError, TypeError, KeyError):
        recorded = set()
    return set(_files(path)) <= recorded


def _files(path: Path) -> list[str]:
    """Returns the relative paths of all files below a folder; a link counts as a file."""
    found = [child for child in path.rglob("*") if not child.is_dir() or child.is_symlink()]
    return sorted(child.relative_to(path).as_posix() for child in found)


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yields a folder beside the target, which takes the target's place if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system as the target, so that renames are atomic.
    workspace = Path(tempfile.mkdtemp(prefix=f".unfinished-{path.name}-", dir=path.parent))
    new = workspace / "new"
    old = workspace / "old"
    new.mkdir()
    try:
        yield new
        # What a later export may replace.
        record = json.loads((new / RECORD).read_text())
        record["files"] = [name for name in _files(new) if name != RECORD]
        (new / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        # Checked again: an export takes minutes, in which somebody may have written there.
        if path.exists() and not _is_ours(path):
            raise EngineError(f"{_KEY}={path}: other files were written there during the export; nothing was exported")
        if path.exists():
            path.rename(old)
        new.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    finally:
        # The earlier export goes only when the new one is in its place.
        shutil.rmtree(workspace, ignore_errors=True)
