"""Import hook: each of a user's modules begins with its own random state.

Keras draws the seeds of layers and initializers from Python's `random` when they are created, and users' code draws
from `np.random`. The objects that a module creates when it is imported must be the same in every process, whatever
was imported before. And a module that trains a Keras model as it is imported, as a script does, is stopped there.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from numpy import random as numpy_random

from runner.config.import_path import TrainingAtImportError, is_installed

_OURS = ("runner", "hydra_plugins")
# NumPy takes a seed of 32 bits.
_MAX_SEED = 0xFFFFFFFF


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds `random` and `np.random` for the block with 0 to 2**32 - 1, as stock Keras does, and restores them."""
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


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and executes user modules with a random state of their own."""

    # Process-wide, as imports are. Whether a user's module is being executed: a library that draws as it is imported
    # must not move its streams, and a script must not train. Then the classes whose `fit` asks that.
    in_own: ClassVar[bool] = False
    _guarded: ClassVar[set[type]] = set()

    def __init__(self, seed: int, own: Collection[str]) -> None:
        self._seed = seed
        self._own = frozenset(own)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of the next finders; a user's module, or a library in one, is executed by `_execute`."""
        spec = None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        # The loader of a built-in module is a class, and one of the old protocol has no `exec_module`.
        if spec is None or not isinstance(spec.loader, Loader) or not hasattr(spec.loader, "exec_module"):
            return spec
        is_own = is_users(spec, self._own)
        if is_own or _Finder.in_own:
            seed = (zlib.crc32(fullname.encode()) ^ self._seed) & _MAX_SEED
            around = seeded(seed) if is_own else kept_random_state()
            execute = partial(self._execute, spec.loader, around, is_own)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def _execute(self, loader: Loader, around: AbstractContextManager[None], is_own: bool, module: ModuleType) -> None:
        # The loader is as any other from here on; one may load several modules.
        del loader.exec_module
        before = _Finder.in_own
        _Finder.in_own = is_own
        try:
            self._guard_fit()
            with around:
                loader.exec_module(module)
        finally:
            _Finder.in_own = before
        self._guard_fit()  # the user's module may have imported Keras just now

    def _guard_fit(self) -> None:
        """Makes the `fit` of each Keras that is loaded raise while a user's module is executed."""
        for name in ("keras", "tf_keras"):
            model = getattr(sys.modules.get(name), "Model", None)
            if model is not None and model not in self._guarded:
                self._guarded.add(model)
                model.fit = _raising_in_own(model.fit)


def _raising_in_own(fit: Callable[..., object]) -> Callable[..., object]:
    @wraps(fit)
    def guarded(*args: object, **options: object) -> object:
        if _Finder.in_own:
            raise TrainingAtImportError
        return fit(*args, **options)

    return guarded


def is_users(spec: ModuleSpec, own: Collection[str] = ()) -> bool:
    """Returns whether a module is a user's: neither of Python, nor installed, nor of this package.

    Packages in `own` are the user's although they are installed.
    """
    top = spec.name.partition(".")[0]
    if top in _OURS:
        return False
    if top in own:
        return True
    if spec.origin is None or not spec.has_location or top in sys.stdlib_module_names:
        return False
    return not is_installed(Path(spec.origin).absolute())


def watch(seed: int, own: Collection[str] = ()) -> None:
    """Seeds each of the user's modules that is imported from now on with the run's seed and the module's name.

    Packages in `own` are the user's although they are installed.
    """
    for finder in list(sys.meta_path):
        if isinstance(finder, _Finder):
            sys.meta_path.remove(finder)
    sys.meta_path.insert(0, _Finder(seed, own))
