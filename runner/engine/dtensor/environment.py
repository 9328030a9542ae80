"""The process's environment for TensorFlow.

Does not import TensorFlow, which reads it at import and at first use.
"""

from __future__ import annotations

import os

from runner.config.schema import RunConfig
from runner.host import accelerators
from runner.layout import mesh

_COMBINER = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"


def prepare_environment(config: RunConfig) -> None:
    """Sets the process's environment; must run before TensorFlow's first import.

    Each of these variables is read once, at an import or when TensorFlow's first device is created, and a later value
    has no effect. So all of them are set here, ahead of every import, and their order among each other is free.

    Args:
      config: a checked config; its `engine.combine_all_reduces` overrides the environment's value.
    """
    # The combiner keeps the order of data but not that of variable reads and writes: an optimizer that reads a slot
    # after assigning it silently applies the previous step's value, on every mesh of several devices. The engine's own
    # step reads everything before it writes, `guards.check_order` enforces that, and `canary.check` runs two steps in
    # the chosen mode. Only exactly "0" turns it off; "false" leaves it on.
    os.environ[_COMBINER] = "1" if config.engine.combine_all_reduces else "0"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    # A user's module may import Keras 3 next to tf_keras. On another backend that would claim devices of its own.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # TensorFlow reserves the memory of every GPU that it sees, so a mesh of CPUs hides them all.
    accelerators.keep_to(mesh.size(config.mesh.axes) if mesh.device_kind(config.mesh) == "gpu" else 0)
    # Silences TensorFlow's C++ log, which writes dozens of lines per start. Its errors still arrive as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
