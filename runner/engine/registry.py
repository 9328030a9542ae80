"""The one table of engines. Imports neither TensorFlow nor JAX, nor NumPy, which a refusal would wait for.

An engine is a package with three modules: `environment`, whose `prepare_environment(config)` runs before its
library's first import; `devices`, whose `prepare_devices(config)` runs right after it; and `engine`, which imports the
library at its top and has `make(config, data, total_steps, planning=)`.

A user's module may import a library itself, and make layers as it is imported. So each command calls `prepare`, or
`prepare_alone` where it computes nothing with the mesh, before it loads data or makes a task.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from runner import layout
from runner.config.import_paths import before_the_model, import_paths
from runner.config.schema import RunConfig
from runner.errors import invalid
from runner.host import libraries, stages
from runner.host.late import late
from runner.host.versions import installed
from runner.processes.team import current

if TYPE_CHECKING:
    from runner.engine.base import Engine
    from runner.host import imports
    from runner.task.base import DataSpec
else:
    imports = late("runner.host.imports")  # with NumPy


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
        raise invalid(
            key,
            name,
            problem=f"it needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            fix=entry.install,
        )


# Environment variables that this process set for its engine -> what they were before; None: not set.
_before: dict[str, str | None] = {}


def prepare(config: RunConfig) -> None:
    """Settles what can't be changed once the engine's library is loaded; comes before any of the user's code.

    The library is not loaded here, so that data that can't be loaded is refused without it. It is loaded when the
    user's code imports it, or by `load`, and has the config's devices from then on. Several processes must come to
    know each other at one moment, so these load it here if user's code follows.

    Args:
      config: a checked config, whose engine this process will make.

    Raises:
      ConfigError: the library is not installed, or sees too few devices; only where user's code follows.
    """
    entry = ENGINES[config.engine.name]
    _prepare_imports(config)
    _prepare_environment(config)
    if not before_the_model(config):
        return
    if current().count == 1:
        imports.call_after_import(entry.libraries[0], partial(_prepare_devices, config))
        return
    load(config)
    with _noted():
        _prepare_devices(config)


def prepare_alone(config: RunConfig) -> None:
    """Does as `prepare` for a process that makes no engine: the user's code gets its library, and CPUs alone.

    Args:
      config: a checked config.
    """
    _prepare_imports(config)
    on_cpu = replace(config, mesh=replace(config.mesh, device="cpu"))
    _prepare_environment(on_cpu)


def _prepare_imports(config: RunConfig) -> None:
    own = {path.partition(".")[0] for path in import_paths(config)}
    libraries_of_all = {library for entry in ENGINES.values() for library in entry.libraries}
    imports.watch(config.trainer.seed, own - libraries_of_all)


def _prepare_environment(config: RunConfig, name: str | None = None) -> None:
    package = ENGINES[name or config.engine.name].package
    with _noted():
        importlib.import_module(f"{package}.environment").prepare_environment(config)


def _prepare_devices(config: RunConfig) -> None:
    package = ENGINES[config.engine.name].package
    importlib.import_module(f"{package}.devices").prepare_devices(config)


@contextmanager
def _noted() -> Iterator[None]:
    """Notes which environment variables the block changes."""
    before = dict(os.environ)
    yield
    for key in {*before, *os.environ}:
        if before.get(key) != os.environ.get(key):
            _before.setdefault(key, before.get(key))


def environment_for_children() -> dict[str, str]:
    """Returns this process's environment as it is without an engine, for processes that prepare their own."""
    environment = dict(os.environ)
    for key, value in _before.items():
        if value is None:
            environment.pop(key, None)
        else:
            environment[key] = value
    return environment


def load(config: RunConfig, name: str | None = None) -> None:
    """Sets the process's environment for an engine, then imports its libraries without what they need not load.

    Args:
      config: a checked config.
      name: of the engine; None: the config's own.
    """
    name = name or config.engine.name
    check_installed(name)
    entry = ENGINES[name]
    if not imports.is_watching():
        _prepare_imports(config)
    _prepare_environment(config, name)
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
