"""Imports TensorFlow and Keras without what they load only because it is installed: a third of the time it takes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def load_tensorflow() -> None:
    """Imports TensorFlow and tf_keras; the process's environment is set, see `runner.engine.dtensor.environment`."""
    # For conversions of JAX functions, data frames, and wrappers for scikit-learn.
    _load("tensorflow", "tf_keras", without=("jax", "pandas", "sklearn"))


def load_keras() -> None:
    """Imports JAX and Keras 3; the process's environment is set, see `runner.engine.jax.environment`."""
    _load("jax", "keras", without=("tensorflow", "pandas", "sklearn", "matplotlib"))


def _load(*names: str, without: tuple[str, ...]) -> None:
    with _hidden(without):
        for name in names:
            if importlib.util.find_spec(name) is not None:  # else the first that needs it says so
                importlib.import_module(name)


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Lets imports of packages fail that are not loaded yet, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
