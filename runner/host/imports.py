"""Import hook: each of a user's modules begins with its own random state.

Keras draws the seeds of layers and initializers from Python's `random` when they are created, and users' code draws
from `np.random`. The objects that a module creates when it is imported must be the same in every process, whatever
was imported before.
"""

from __future__ import annotations

import random
import sys
import sysconfig
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from numpy import random as numpy_random

_OURS = ("runner", "hydra_plugins")
# NumPy takes a seed of 32 bits.
_MAX_SEED = 0xFFFFFFFF


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds `random` and `np.random` for the block, as `tf_keras.utils.set_random_seed` does, and restores them.

    Args:
      seed: 0 to 2**32 - 1.
    """
    with kept_random_state():
        random.seed(seed)
        numpy_random.seed(seed)
        yield


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restores the states of `random` and `np.random` after the block."""
    python_state = random.getstate()
    numpy_state = numpy_random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        numpy_random.set_state(numpy_state)


class _Loader(Loader):
    """Executes a module inside a context."""

    def __init__(self, loader: Loader, around: AbstractContextManager[None]) -> None:
        self._loader = loader
        self._around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Lets the module's own loader create it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Lets the module's own loader execute it, which is the module's loader from then on."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._around:
            self._loader.exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and executes user modules with a random state of their own."""

    def __init__(self, seed: int, own: Collection[str]) -> None:
        self._seed = seed
        self._own = frozenset(own)
        # Whether a user's module is being executed: a library that draws as it is imported must not move its streams.
        self._in_own = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of the next finders, with the loader of a user's module, or a library in one, wrapped."""
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in specs if found is not None), None)
        # The loader of a built-in module is a class, and one of the old protocol has no `exec_module`: neither can be
        # wrapped.
        if spec is not None and isinstance(spec.loader, Loader) and hasattr(spec.loader, "exec_module"):
            if is_users(spec, self._own):
                seed = (zlib.crc32(fullname.encode()) ^ self._seed) & _MAX_SEED
                spec.loader = _Loader(spec.loader, self._executing(seeded(seed), own=True))
            elif self._in_own:
                spec.loader = _Loader(spec.loader, self._executing(kept_random_state(), own=False))
        return spec

    @contextmanager
    def _executing(self, around: AbstractContextManager[None], *, own: bool) -> Iterator[None]:
        before = self._in_own
        self._in_own = own
        try:
            with around:
                yield
        finally:
            self._in_own = before


def is_users(spec: ModuleSpec, own: Collection[str] = ()) -> bool:
    """Returns whether a module is a user's: neither of Python, nor installed, nor of this package.

    Args:
      spec: the spec of the module.
      own: names of packages that are the user's although they are installed.
    """
    top = spec.name.partition(".")[0]
    if top in _OURS:
        return False
    if top in own:
        return True
    if spec.origin is None or not spec.has_location or top in sys.stdlib_module_names:
        return False
    path = Path(spec.origin).absolute()
    return not any(path.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    """Returns the folders of Python's library and of installed packages."""
    folders = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    paths = sysconfig.get_paths()
    folders += [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths]
    return tuple(folder.absolute() for folder in folders)


def watch(seed: int, own: Collection[str] = ()) -> None:
    """Seeds each of the user's modules that is imported from now on with the run's seed and the module's name.

    Args:
      seed: of the run.
      own: names of packages that are the user's although they are installed.
    """
    for finder in [finder for finder in sys.meta_path if isinstance(finder, _Finder)]:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, _Finder(seed, own))


def is_watching() -> bool:
    """Returns whether `watch` was called."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)
