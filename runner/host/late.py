"""Lazy imports: modules that are imported when they are first used.

A config error, `--help` and `--version` take less than a second; MLflow, matplotlib, Optuna and the engines' libraries
take several to import. A module that may need one of them names it at its top:

    if TYPE_CHECKING:
        from runner.cli.runs import act
    else:
        act = late("runner.cli.runs.act")

so its dependencies and their types are visible there, as with any import.
"""

from __future__ import annotations

from importlib import import_module


class _Late:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)


def late(name: str) -> _Late:
    """Returns a proxy of a module, which is imported at the first use.

    Each use looks the attribute up in the module itself, so an attribute that a test replaces is replaced here too.

    Args:
      name: the module's import path.
    """
    return _Late(name)
