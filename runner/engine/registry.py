"""The table of engines: what differs between them, how their modules are found, and when they are prepared.

Imports neither TensorFlow nor JAX, nor NumPy, whose import would delay a config error.

An engine is a package with three modules:

- `environment`: `prepare_environment(engine, mesh, timeout)` runs before the library's first import; the mesh is None
  in a plan for hardware that is not here;
- `devices`: `prepare_devices(mesh)` runs right after that import;
- `engine`: `make(config, data, total_steps, planning=)` returns a `runner.engine.common.Engine`; imports the library.

One that is `full` has a module `planned`, whose engine is made for hardware that is not here, and a package
`own_step`, with a module `engine` of its own for steps of a user's class.

A user's module may import a library itself, and create layers at its import. So each command calls `prepare` before it
loads data or creates a task.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

from runner import layout
from runner.config.options import import_paths
from runner.config.schema import ModelConfig, OptimizerConfig, RunConfig
from runner.engine.optim import transformation
from runner.errors import invalid
from runner.host import stages
from runner.host.late import late
from runner.host.libraries import installed
from runner.host.signals import current
from runner.model import loading, target

if TYPE_CHECKING:
    from runner.engine.common import Engine
    from runner.model import own_modules
    from runner.task.base import DataSpec
else:
    own_modules = late("runner.model.own_modules")  # imports NumPy

TF_KERAS = "tf_keras"
KERAS_3 = "keras"


@dataclass(frozen=True)
class EngineEntry:
    """Everything in which one engine differs from the others. No other module compares its name.

    Attributes:
      title: name of its first library, as its makers write it.
      libraries: packages that must be installed, in import order; the first one computes.
      distributions: names of the distributions whose versions are recorded with a run.
      hidden: packages that the libraries import only because they are installed.
      keys: keys of the group `engine` that this engine has and not every engine.
      takes_layouts: it trains the tf.Modules of `model=mlp_core`, whose builder takes layouts.
      full: it trains models of Keras 3 with all features: accelerators, several processes, steps of a user's class
        (`task=step`), frozen variables (`model.trainable`), layout maps of models (`layout.from_model`), and plans for
        absent hardware.
    """

    package: str
    title: str
    libraries: tuple[str, ...]
    distributions: tuple[str, ...]
    hidden: tuple[str, ...]
    install: str
    keys: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("float32",)
    takes_layouts: bool = False
    full: bool = False

    @property
    def keras(self) -> str:
        """Returns the package of the Keras models that it trains, and that its runs are exported as."""
        return KERAS_3 if self.full else TF_KERAS

    def module(self, name: str) -> ModuleType:
        """Returns one of the package's modules."""
        with current().importing():
            return importlib.import_module(f"{self.package}.{name}")


_KERAS_DTENSOR = EngineEntry(
    package="runner.engine.dtensor",
    title="TensorFlow",
    libraries=("tensorflow", "tf_keras"),
    distributions=("tensorflow", "tf-keras"),
    # TensorFlow converts JAX functions, tf_keras reads data frames and wraps models for scikit-learn. Their imports
    # would take longer than ours, and no run needs them.
    hidden=("jax", "pandas", "sklearn"),
    install="pip install -e .",
    keys=("combine_all_reduces",),
)
ENGINES: Mapping[str, EngineEntry] = {
    "keras_dtensor": _KERAS_DTENSOR,
    "core_dtensor": replace(_KERAS_DTENSOR, takes_layouts=True),
    "jax": EngineEntry(
        package="runner.engine.jax",
        title="JAX",
        libraries=("jax", "keras"),
        distributions=("keras", "jax"),
        hidden=("tensorflow", "pandas", "sklearn", "matplotlib"),
        install="pip install -e '.[jax]'",
        keys=("state", "loop", "data", "compilation_cache"),
        precisions=("float32", "bfloat16"),
        full=True,
    ),
}


def distributions() -> tuple[str, ...]:
    """Returns the distributions of all engines' libraries, each once."""
    return tuple(dict.fromkeys(name for entry in ENGINES.values() for name in entry.distributions))


def check_installed(name: str) -> None:
    """Checks that an engine's libraries are installed, without importing them."""
    entry = ENGINES[name]
    missing = []
    for library in entry.libraries:
        # Only looked for: an import would read the environment before `prepare` has set it.
        if importlib.util.find_spec(library) is None:
            missing.append(library)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        problem = f"needs {' and '.join(missing)}, which {verb} not installed"
        raise invalid("engine.name", name, problem=problem, fix=entry.install)


# Environment variables that this process has set for its engine -> their values before; None: not set.
_values_before: dict[str, str | None] = {}


def prepare(config: RunConfig, *, computes: bool = True) -> None:
    """Sets what can't be changed once the engine's library is loaded, before any of the user's code runs.

    The library itself is not loaded here, so that an error in the data is reported without waiting for it. It is
    loaded by `load`, and has the config's devices from then on. It is loaded here if any code is the user's, which may
    import it as well. A process that computes nothing makes no engine, and has the CPUs only.
    """
    entry = ENGINES[config.engine.name]
    paths = import_paths(config.model, config.optimizer, config.dataset, config.task, config.trainer)
    user_packages = {path.partition(".")[0] for path in paths}
    engine_libraries: set[str] = set()
    for each in ENGINES.values():
        engine_libraries.update(each.libraries)
    own_modules.watch(config.trainer.seed, user_packages - engine_libraries)
    mesh = config.mesh
    if not computes:
        mesh = replace(mesh, device="cpu")
    with _remembering_environment():
        on = mesh if config.hardware.is_here else None
        entry.module("environment").prepare_environment(config.engine, on, config.cluster.timeout)
    if not paths or not computes:
        return
    load(config.engine.name)
    if config.hardware.is_here:
        with _remembering_environment():
            entry.module("devices").prepare_devices(mesh)
    # Now, so that a mistake in them ends the command before a run is recorded; the rest is called before that anyway.
    if not target.is_own(config.model):
        target.check_options(config.model)
    if config.optimizer.target:
        transformation.loaded(config.optimizer)


@contextmanager
def _remembering_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    for key in {*before, *os.environ}:
        if before.get(key) != os.environ.get(key):
            # The first value is kept if several blocks change a variable: that one is the user's.
            _values_before.setdefault(key, before.get(key))


def environment_for_children() -> dict[str, str]:
    """Returns this process's environment as it is without an engine, for children that prepare one."""
    environment = dict(os.environ)
    for key, value in _values_before.items():
        if value is None:
            environment.pop(key, None)
        else:
            environment[key] = value
    return environment


def load(engine: str) -> None:
    """Imports an engine's libraries, but not those in `hidden`; `prepare` has set the process's environment."""
    check_installed(engine)
    entry = ENGINES[engine]
    first = entry.libraries[0]
    if first in sys.modules:
        # A user's module has imported it already: nothing to wait for, so no stage is shown.
        loading.load(entry.libraries, without=entry.hidden)
        return
    title = " ".join([entry.title, *installed([first]).values()])
    with stages.stage(f"loading {title}"):
        loading.load(entry.libraries, without=entry.hidden)


def optimizer_of(
    engine: str, model: ModelConfig, optimizer: OptimizerConfig, seed: int, data: DataSpec
) -> OptimizerConfig:
    """Returns a run's optimizer: the config's, or that of the model's `compile`, which the task takes here."""
    if not data.task.of_model:
        return optimizer
    load(engine)
    own: OptimizerConfig = ENGINES[engine].module("adapter").take_compile(model, optimizer, seed, data)
    return own


def make_engine(config: RunConfig, data: DataSpec, total_steps: int, *, planning: bool = False) -> Engine:
    """Returns the config's engine, not yet built; this is where TensorFlow or JAX is imported.

    With `planning` the program is read and no step is run, so the engine may skip what only a step needs: values of
    variables, devices after the first.
    """
    microbatch = config.dataset.batch_size // config.trainer.accumulate_steps
    layout.check_inputs(config.layout, data.arrays, microbatch, config.mesh.axes)
    load(config.engine.name)
    entry = ENGINES[config.engine.name]
    optimizer = optimizer_of(config.engine.name, config.model, config.optimizer, config.trainer.seed, data)
    config = replace(config, optimizer=optimizer)
    if config.hardware.is_here:
        module = entry.module("own_step.engine" if data.task.own_step else "engine")
    else:
        module = entry.module("planned")
    engine: Engine = module.make(config, data, total_steps, planning=planning)
    return engine
