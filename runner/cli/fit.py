"""`runner.fit`: trains a compiled Keras 3 model of this process as a run, on a mesh of this process."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.cli.notebook import OpenedRun, trained
from runner.config.schema import MeshConfig, OptimizerConfig, VerifyConfig
from runner.data.base import Array
from runner.data.sources import keras_data
from runner.data.sources.keras_data import SAMPLE_WEIGHT
from runner.engine.common import Engine
from runner.engine.optim import keras_classes
from runner.errors import ConfigError, EngineError, Interrupted, describe, invalid
from runner.host import signals
from runner.host.late import late
from runner.layout import mesh as runner_mesh
from runner.layout.paths import slot_path
from runner.plan.result import typed_overrides
from runner.train.record import Verdict

if TYPE_CHECKING:
    import keras

    from runner.cli import app
    from runner.engine.jax import names
    from runner.train import run as train
    from runner.verify import record, worker
else:
    # They import Keras, JAX or MLflow.
    keras = late("keras")
    app = late("runner.cli.app")
    names = late("runner.engine.jax.names")
    train = late("runner.train.run")
    record = late("runner.verify.record")
    worker = late("runner.verify.worker")
backend = late("jax.extend.backend")

# The module that the config names: the model and the data are in this process alone.
_MODULE = "runner_fit"
_OVERRIDES = {
    "engine": "jax",
    "model": "custom",
    "model._target_": f"{_MODULE}.build",
    "dataset": "custom",
    "dataset._target_": f"{_MODULE}.load",
    "dataset.holdout": 0,
    "task": "compiled",
    "task.scale_images": False,
}
_TO_CONTINUE = 'To continue: the same call with resume="latest"'
_BATCH = 32  # Keras's


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    validation_data: Any = None,
    validation_split: float = 0.0,
    batch_size: int | None = None,
    epochs: int = 1,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[Any] = (),
    shuffle: bool = True,
    verbose: object = "auto",
    **keywords: object,
) -> OpenedRun:
    """Trains a compiled Keras 3 model as its `fit` does, but as a run: `fit(model, x, y, mesh="batch4")`.

    Optimizer, losses and metrics are those of `compile`; what the optimizer has learned before is not continued.
    Afterwards the model has the trained weights, and its optimizer the state. A mesh of several CPU devices makes the
    devices of JAX again.

    Args:
      model: compiled. A subclass is built again from its config.
      x: array, list or dict of arrays; or a `PyDataset` or finite `tf.data.Dataset` of batches, which is read once.
      y: targets of arrays.
      validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset, evaluated after each epoch. Without any, the
        training examples are evaluated at the end.
      validation_split: share of the examples, the last ones, to evaluate in place of `validation_data`.
      batch_size: over all devices; None: 32, or that of the dataset.
      epochs: passes over the examples.
      sample_weight: of the training examples.
      class_weight: weight by class of the training examples, others 1; of one output, and without `sample_weight`.
      callbacks: of Keras, that read `logs`, as those of `trainer.callbacks`.
      shuffle: draw a new order each epoch; a `tf.data.Dataset` keeps its own.
      verbose: 0 shows no progress.
      **keywords: keys of the config with two underscores for each dot, as `layout="fsdp"` and
        `trainer__verify_first=True`. With `resume="latest"` the same call continues a run.

    Raises:
      ConfigError: the config is invalid, or a run can't take the model; the message is one line with the fix.
      EngineError, TrackingError: the run failed.
      KeyboardInterrupt: it was interrupted; the run is recorded as KILLED.
    """
    library = sys.modules.get("keras")
    if library is None or not isinstance(model, library.Model) or library.backend.backend() != _OVERRIDES["engine"]:
        fix = 'set os.environ["KERAS_BACKEND"] = "jax" before import keras'
        raise invalid("model", type(model).__name__, problem="is no model of Keras 3 on JAX", fix=fix)
    if not model.compiled:
        raise invalid("model", model.name, problem="is not compiled", fix="call its compile before")
    if y is None and not (isinstance(x, keras.utils.PyDataset) or hasattr(x, "as_numpy_iterator")):
        fix = "give arrays and y, a PyDataset, or a tf.data.Dataset of known length"
        raise invalid("x", type(x).__name__, problem="has no targets", fix=fix)
    if not 0.0 <= validation_split < 1.0:
        raise invalid("validation_split", validation_split, problem="must be from 0 to below 1", fix="set 0.1")
    splits = {"train": _content(model, (x, y, sample_weight))}
    if validation_data is not None:
        given = validation_data if isinstance(validation_data, tuple | list) else (validation_data,)
        splits["test"] = _content(model, given)
    first = (x, y)
    if splits["train"] is x:
        first = next(iter(x))
        batch_size = batch_size or len(keras.tree.flatten(first)[0])
        shuffle = shuffle and isinstance(x, keras.utils.PyDataset)
    arrays = keras_data.by_split(splits, "fit", weighted=True)
    for number, name in enumerate(getattr(model, "input_names", ())):
        for split in arrays.values():
            if f"x{number}" in split:
                split[name] = split.pop(f"x{number}")
    targets = list(keras_data.targets(first[1]))
    rows = len(next(iter(arrays["train"].values())))
    own = {key.replace("__", "."): value for key, value in keywords.items()}
    config: dict[str, object] = {"trainer.epochs": epochs, "dataset.shuffle": shuffle}
    if verbose in (0, False):
        config["trainer.progress"] = "none"
    if validation_data is None and validation_split:
        rows = int(rows * (1.0 - validation_split))
        config |= {"dataset.train": f"train[:{rows}]", "dataset.test": f"train[{rows}:]"}
    elif validation_data is None:
        arrays["test"] = dict(arrays["train"])
        config["trainer.evaluate_every"] = own.get("trainer.epochs", epochs)
    if class_weight is not None:
        if len(targets) > 1 or SAMPLE_WEIGHT in arrays["train"]:
            problem = "needs one output, and no sample_weight"
            raise invalid("class_weight", class_weight, problem=problem, fix="give all weights as sample_weight")
        arrays["train"][SAMPLE_WEIGHT] = _of_classes(arrays["train"][targets[0]], class_weight, rows)
    batch_size = _BATCH if batch_size is None else batch_size
    size = own.get("dataset.batch_size", min(batch_size, rows))
    is_even = isinstance(size, int) and size > 0 and rows % size == 0
    config |= {
        "dataset.batch_size": size,
        "dataset.eval_batch_size": batch_size,
        "dataset.remainder": "drop" if is_even else "pad",
        "task.target": targets,
    }
    for weight in [split[SAMPLE_WEIGHT] for split in arrays.values() if SAMPLE_WEIGHT in split][:1]:
        config["task.example_weight"] = SAMPLE_WEIGHT
        for split in arrays.values():
            shape = (len(next(iter(split.values()))), *np.shape(weight)[1:])
            split.setdefault(SAMPLE_WEIGHT, np.ones(shape, np.float32))
    if "optimizer" not in own:
        for key, value in keras_classes.content_of(model.optimizer).items():
            config["optimizer" if key == "name" else f"++optimizer.{key}"] = value
    config = {**_OVERRIDES, **config}
    for key, value in own.items():
        config[f"++{key}" if f"++{key}" in config else key] = value
    values = model.get_weights()
    module = ModuleType(_MODULE)
    # Another optimizer of the config is not that of `compile`; one that is adam as it is counts as none there.
    compiled = {"optimizer": "adam"} if "optimizer" in own else {}
    vars(module).update(build=lambda: _clone(model, values, compiled), load=lambda: arrays)
    sys.modules[_MODULE] = module

    def start(on: MeshConfig, arguments: list[str]) -> None:
        if runner_mesh.device_kind(on) == "cpu" and runner_mesh.size(on.axes) > 1:
            # JAX has begun with fewer devices, or with too few threads for them. Its old arrays stay readable.
            backend.clear_backends()
        ended = partial(_put_back, model)
        validates = validation_data is not None or validation_split > 0.0
        command = partial(
            train.run,
            verify=_verified,
            given=callbacks,
            validates=validates,
            ended=ended,
            how_to_continue=_TO_CONTINUE,
        )
        with _in_this_process():
            app.run_here(command, arguments)

    try:
        return trained(typed_overrides([config], {}), start)
    except (ConfigError, EngineError) as error:
        # The caller has typed no import paths.
        text = str(error).replace(f"model._target_={_MODULE}.build", f"model={model.name}")
        error.args = (text.replace(f"{_MODULE}.load", "fit"),)
        raise
    finally:
        del sys.modules[_MODULE]  # else it would keep the arrays


def _content(model: Any, given: Any) -> Any:
    """Returns a dataset as it is, or arrays by name, by whose shapes the model gets its variables if need be."""
    x, y, weight = (*given, None, None)[:3]
    if y is None:
        return x
    if not model.built:
        model(keras.tree.map_structure(lambda part: keras.KerasTensor((None, *np.shape(part)[1:])), x))
    return keras_data.named((x, y) if weight is None else (x, y, weight), "fit", weighted=True)


def _of_classes(labels: Any, class_weight: Mapping[int, float], rows: int) -> Array:
    """Returns the weight of each example by its class, number (N,), (N, 1) or one-hot (N, C); 1 after `rows`."""
    labels = np.asarray(labels)
    if labels.ndim > 1 and labels.shape[-1] > 1:
        labels = labels.argmax(-1)
    weights = np.ones(len(labels), np.float32)
    for row, label in enumerate(labels.reshape(len(labels), -1)[:rows, 0]):
        weights[row] = class_weight.get(round(float(label)), 1.0)
    return weights


def _clone(model: Any, values: list[Array], compiled: Mapping[str, object]) -> Any:
    """Returns another model with a model's layers, weights, and compile but for what `compiled` has."""
    kinds = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    model.compiled = False  # else Keras would look up the functions of its compile by their names
    try:
        with keras.saving.CustomObjectScope(kinds):
            clone = keras.models.clone_model(model)
        if not clone.built:
            clone.build_from_config(model.get_build_config())
        clone.set_weights(values)
        # A layer's config does not say which of its own layers are frozen.
        for layer, own in zip(clone._flatten_layers(), model._flatten_layers(), strict=True):
            layer.trainable = own.trainable
        clone.compile(**{**model._compile_config.config, **compiled})
    except Exception as error:  # a user's layer may raise anything
        problem = f"can't be built again from its config ({describe(error)})"
        fix = "write its classes' get_config, or a builder (docs/own_model.md)"
        raise invalid("model", model.name, problem=problem, fix=fix) from error
    finally:
        model.compiled = True
    return clone


def _verified(content: Mapping[str, object], options: VerifyConfig, folder: Path) -> Verdict:
    return record.computed(content, options, folder, lambda files, *_: worker.verified(files))


def _put_back(model: Any, engine: Engine, config: OptimizerConfig, steps: int) -> None:
    """Sets the weights of the caller's model, and the state of its optimizer unless the run had another one."""
    state = engine.state()
    variables = names.Names(model).variables
    for path, variable in variables.items():
        variable.assign(state[path])
    optimizer = model.optimizer
    if config.class_name == type(optimizer).__name__:
        optimizer.build(model.trainable_variables)
        ranks = {path: len(variables[path].shape) for path in engine.trainable}
        for slot, of_slot in keras_classes.keras_slots(config, optimizer, ranks):
            for path, variable in of_slot.items():
                variable.assign(state[slot_path(slot.name, path)])
        optimizer.iterations.assign(steps)


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Puts back what a command changes of its process; a signal that has ended it is Ctrl-C's exception."""
    environment = dict(os.environ)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stop = signals.StopRequest()
    if threading.current_thread() is threading.main_thread():
        signals.process[:] = [stop.__enter__()]
    try:
        yield
    except Interrupted as interrupted:
        raise KeyboardInterrupt from interrupted
    finally:
        stop.__exit__()
        signals.process.clear()
        root.handlers[:] = handlers
        root.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)
