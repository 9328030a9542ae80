"""Imports an engine's libraries without what they load only because it is installed: a third of the time it takes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def load(names: Sequence[str], *, without: Sequence[str]) -> None:
    """Imports packages; the process's environment is set, see `runner.engine.registry.load`.

    Args:
      names: what is installed of them is imported, in this order.
      without: packages that they shall not find, if they are not loaded yet.
    """
    with hidden(without):
        for name in names:
            if importlib.util.find_spec(name) is not None:  # else the first that needs it says so
                importlib.import_module(name)


@contextmanager
def hidden(names: Sequence[str]) -> Iterator[None]:
    """Lets imports of packages fail that are not loaded yet, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
