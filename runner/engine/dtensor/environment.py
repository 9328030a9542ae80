"""The process's environment for TensorFlow. Imports no TensorFlow: it must be set before that is first imported."""

from __future__ import annotations

import os

from runner.config.schema import RunConfig
from runner.host import accelerators
from runner.layout import mesh
from runner.processes.team import current

_COMBINER = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"


def prepare_environment(config: RunConfig) -> None:
    """Sets the process's environment; must run before TensorFlow's first import.

    Args:
      config: a checked config; its `engine.combine_all_reduces` overrides what the environment says.
    """
    merge_all_reduces(config.engine.combine_all_reduces is not False)
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    # Keras 3, where a user's module imports it beside tf_keras: another library would want devices of its own.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    own = mesh.size(config.mesh.axes) // current().count
    accelerators.keep_to(own if mesh.device_kind(config.mesh) == "gpu" else 0)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's C++ log; its exceptions still arrive


def merge_all_reduces(merges: bool) -> None:
    """Says whether DTensor merges all-reduces. It reads that once, when the process's first mesh is made."""
    os.environ[_COMBINER] = "1" if merges else "0"  # only "0" is off
