"""Keras's callbacks that read logs: which they are, and how `trainer.callbacks` makes them.

Those of Keras's that steer have keys here. Imports no library itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config import import_path
from runner.errors import ConfigError, did_you_mean, invalid

# What names a callback in errors, and the callback.
Listener = tuple[str, Any]
_TARGET = "_target_"
_KERAS = ("keras.", "tf_keras.", "tensorflow.")
# Keras's callbacks that do what a run does by its own keys -> what to do.
STEERING = {
    "BackupAndRestore": "set resume=auto name=exp1",
    "EarlyStopping": "set trainer.early_stopping.metric=eval/loss trainer.early_stopping.patience=3",
    "LearningRateScheduler": "set optimizer.schedule.name=cosine, or write it as a function of Optax",
    "ModelCheckpoint": "set trainer.checkpoint.best=eval/loss trainer.checkpoint.keep=2",
    "OrbaxCheckpoint": "set trainer.checkpoint.best=eval/loss trainer.checkpoint.keep=2",
    "ReduceLROnPlateau": "set optimizer.schedule.plateau.metric=eval/loss",
    "SwapEMAWeights": "set engine=jax optimizer.ema.decay=0.999",
    "TerminateOnNaN": "remove it: trainer.on_nan=stop is the default",
}
# What is called of each of them; a class without these is no callback.
_METHODS = ("set_params", "set_model", "on_train_begin", "on_train_batch_end", "on_epoch_end", "on_train_end")


def check(entries: Sequence[Mapping[str, Any]]) -> None:
    """Checks the paths of `trainer.callbacks` without importing them. Raises ConfigError."""
    for index, entry in enumerate(entries):
        key = f"trainer.callbacks[{index}].{_TARGET}"
        path = entry[_TARGET]
        import_path.check(key, path)
        _check_reads(key, path, entry)
        file = import_path.source_of(path)
        module, _, name = path.rpartition(".")
        if module == "keras.callbacks" and file is not None:  # of lines such as `import CSVLogger as CSVLogger`
            known = re.findall(r" as (\w+)", file.read_text("utf-8"))
            if known and name not in known:
                problem = f"{module} has no {name}"
                raise invalid(key, path, problem=problem, fix=did_you_mean(name, known, f"see {module} of Keras"))


def _check_reads(key: str, path: str, options: Mapping[str, Any]) -> None:
    fix = STEERING.get(path.rpartition(".")[2])
    if fix and path.startswith(_KERAS):
        if options.get("patience"):
            fix = fix.replace("patience=3", f"patience={options['patience']}")
        raise invalid(key, path, problem="callbacks only read here, and a run does this itself", fix=fix)


def make(entries: Sequence[Mapping[str, Any]], given: Sequence[Any] = ()) -> list[Listener]:
    """Returns the callbacks that `trainer.callbacks` describes, and after them those that are given, checked.

    Raises:
      ConfigError: one can't be made, is no callback, or steers, as a subclass of `EarlyStopping` does.
    """
    found = []
    for index, entry in enumerate(entries):
        found.append(_made(f"trainer.callbacks[{index}]", entry))
    for index, callback in enumerate(given):
        found.append((f"callbacks[{index}]", callback))
    for key, callback in found:
        name = type(callback).__name__
        if not all(callable(getattr(callback, method, None)) for method in _METHODS):
            raise invalid(key, name, problem="is no callback", fix="derive it from keras.callbacks.Callback")
        for kind in type(callback).__mro__:
            _check_reads(key, f"{kind.__module__}.{kind.__name__}", getattr(callback, "__dict__", {}))
    return found


def _made(key: str, entry: Mapping[str, Any]) -> Listener:
    path = entry[_TARGET]
    kind = import_path.load(path, f"{key}.{_TARGET}")
    options = dict(entry)
    del options[_TARGET]
    import_path.check_options(key, path, kind, options, write="write {name}: ...")
    for name, value in options.items():
        # YAML has no functions: those of a LambdaCallback are named by their import paths.
        if name.startswith("on_") and isinstance(value, str):
            import_path.check(f"{key}.{name}", value)
            options[name] = import_path.load(value, f"{key}.{name}")
    try:
        return key, kind(**options)
    except Exception as error:  # A user's class may raise anything.
        raise ConfigError(f"{key}.{_TARGET}={path}: raised {import_path.raised(error)}; correct it") from error


class NoModel:
    """What a callback has as `self.model`, or as its optimizer: `stop_training`, Keras's `history`, and no weights.

    The engine owns the state, in shards that each device call replaces. The variables of a Keras model beside it would
    have values of long ago, and what a callback sets there would be lost. So reading and setting them are errors.
    """

    def __init__(self, name: str = "model") -> None:
        # TensorBoard looks for a graph of `train_function`.
        vars(self).update(_name=name, stop_training=False, train_function=None)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            return NoModel(f"{self._name}.optimizer")
        raise AttributeError(f"callbacks get logs here, and no {self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("stop_training", "history"):
            raise AttributeError(f"callbacks can't set {self._name}.{name} here, only model.stop_training")
        vars(self)[name] = value
