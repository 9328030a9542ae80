"""Modules that are imported when they are first used.

A refusal, `--help` and `--version` answer in less than a second; MLflow, matplotlib, Optuna and the engines' libraries
take several to import. A module that may need one of them names it at its top:

    if TYPE_CHECKING:
        from runner.compare import plots
    else:
        plots = late("runner.compare.plots")

so that what it depends on, and the types of that, are seen there as with any import.
"""

from __future__ import annotations

from importlib import import_module


class _Late:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)


def late(name: str) -> _Late:
    """Returns what stands for a module until it is used.

    Each use looks the attribute up in the module itself, so that one that a test replaces is the one that is used.

    Args:
      name: the module's import path.
    """
    return _Late(name)
