"""The process's environment for TensorFlow, set without importing it."""

from __future__ import annotations

import os

from runner.cluster import accelerators
from runner.config.schema import EngineConfig

_COMBINER = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"


def prepare_environment(engine: EngineConfig, *_: object) -> None:
    """Sets what TensorFlow reads once, at its import or with its first device; the same on every mesh."""
    # The combiner keeps the order of data but not that of variable reads and writes: an optimizer that reads a slot
    # after assigning it silently applies the previous step's value, on every mesh of several devices. The engine's own
    # step reads everything before it writes, which `guards.check_order` enforces. Only exactly "0" turns it off.
    os.environ[_COMBINER] = "1" if engine.combine_all_reduces else "0"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    # A user's module may import Keras 3 next to tf_keras. On another backend that would claim devices of its own.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # TensorFlow reserves the memory of every GPU that it sees.
    accelerators.keep_to(0)
    # Silences TensorFlow's C++ log, which writes dozens of lines per start. Its errors still arrive as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
