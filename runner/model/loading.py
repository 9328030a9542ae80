"""Imports of an engine's or a model's libraries without their optional dependencies."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner.cluster.team import current as current_team
from runner.host.signals import current


def load(names: Sequence[str], *, without: Sequence[str]) -> None:
    """Imports those packages, in this order, that are installed, while they don't find the ones of `without`.

    The optional dependencies take a third of the time. The process's environment must be set, see
    `runner.engine.registry.prepare`.
    """
    # Of several processes, the others wait to be told of a signal. A run's record is not open yet.
    with current().importing(at_once=current_team().count == 1), hidden(without):
        for name in names:
            # The first code that needs a missing package reports it, with what to install.
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)


@contextmanager
def hidden(names: Sequence[str]) -> Iterator[None]:
    """Makes imports of packages fail as if they were not installed; those that are loaded already are not affected."""
    not_loaded = [name for name in names if name not in sys.modules]
    # Python raises ModuleNotFoundError for a module that is None in `sys.modules`.
    sys.modules.update(dict.fromkeys(not_loaded))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in not_loaded:
            del sys.modules[name]
