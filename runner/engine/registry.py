"""The one table of engines. Imports neither TensorFlow nor JAX, nor NumPy, which a refusal would wait for.

An engine is a package with two modules: `environment`, whose `prepare_environment(config)` runs before its library's
first import, and `engine`, which imports the library at its top and has `make(config, data, total_steps, planning=)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runner import layout
from runner.config.schema import RunConfig
from runner.errors import refuse
from runner.host import libraries, stages
from runner.host.versions import installed

if TYPE_CHECKING:
    from runner.engine.base import Engine
    from runner.task.base import DataSpec


@dataclass(frozen=True)
class EngineEntry:
    """One engine.

    Attributes:
      package: that holds its modules.
      libraries: packages that must be installed, in the order of their imports.
      hidden: packages that the libraries load only because they are installed.
      install: the command that installs them.
      keys: of the group `engine`, those that this engine has and not every engine.
      precisions: what `engine.precision` may be.
      takes_layouts: its builders must take `layouts`; they build no Keras model.
    """

    package: str
    libraries: tuple[str, ...]
    hidden: tuple[str, ...]
    install: str
    keys: tuple[str, ...]
    precisions: tuple[str, ...] = ("float32",)
    takes_layouts: bool = False


_DTENSOR = EngineEntry(
    package="runner.engine.dtensor",
    libraries=("tensorflow", "tf_keras"),
    hidden=("jax", "pandas", "sklearn"),  # conversions of JAX functions, data frames, wrappers for scikit-learn
    install="pip install -e .",
    keys=("combine_all_reduces", "intra_op_threads", "canary"),
)
ENGINES: Mapping[str, EngineEntry] = {
    "keras_dtensor": _DTENSOR,
    "core_dtensor": replace(_DTENSOR, takes_layouts=True),
    "jax": EngineEntry(
        package="runner.engine.jax",
        libraries=("jax", "keras"),
        hidden=("tensorflow", "pandas", "sklearn", "matplotlib"),
        install="pip install -e '.[jax]'",
        keys=("state", "loop", "data", "compilation_cache"),
        precisions=("float32", "bfloat16"),
    ),
}

_TITLES = {"tensorflow": "TensorFlow", "jax": "JAX"}


def check_installed(name: str, key: str = "engine.name") -> None:
    """Checks that an engine's libraries are there, without importing them.

    Args:
      name: of the engine, one of `ENGINES`.
      key: that names it.

    Raises:
      ConfigError: names the command that installs them.
    """
    entry = ENGINES[name]
    missing = [library for library in entry.libraries if importlib.util.find_spec(library) is None]
    if missing:
        raise refuse(
            key,
            name,
            allowed=f"it needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            mend=entry.install,
        )


def load(config: RunConfig, name: str | None = None) -> None:
    """Sets the process's environment for an engine, then imports its libraries without what they need not load.

    Args:
      config: a checked config.
      name: of the engine; None: the config's own.
    """
    name = name or config.engine.name
    check_installed(name)
    entry = ENGINES[name]
    importlib.import_module(f"{entry.package}.environment").prepare_environment(config)
    first = entry.libraries[0]
    with nullcontext() if first in sys.modules else stages.stage(f"loading {_titled(first)}"):
        libraries.load(entry.libraries, without=entry.hidden)


def _titled(library: str) -> str:
    return " ".join([_TITLES[library], *installed([library]).values()])


def make_engine(config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> Engine:
    """Returns the engine that the config names, not yet built. This is where TensorFlow or JAX is imported.

    Args:
      config: a checked config.
      data: specs of the dataset's arrays, and the task.
      total_steps: training steps of the whole run, for schedules that end with it.
      planning: its program is read and no step is run, so that it may leave out what only a step needs: values of
        variables, the canary, devices beside the first.

    Raises:
      ConfigError: the layout does not fit the arrays.
    """
    microbatch = config.dataset.batch_size // config.trainer.accumulate_steps
    layout.check_inputs(config.layout, data.arrays, microbatch, config.mesh.axes)
    load(config)
    module = importlib.import_module(f"{ENGINES[config.engine.name].package}.engine")
    made: Engine = module.make(config, data, total_steps, planning=planning)
    return made
