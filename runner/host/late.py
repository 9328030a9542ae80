"""Lazy imports: modules that are imported when they are first used.

A config error, `--help` and `--version` take less than a second; MLflow, matplotlib, Optuna and the engines' libraries
take several to import. A module that may need one of them names it at its top, with its types:

    if TYPE_CHECKING:
        from runner.cli.runs import act
    else:
        act = late("runner.cli.runs.act")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from runner.host.signals import current


class late:  # noqa: N801 - called as a function
    """A proxy of a module. Each use looks up the module's attribute, so one that a test replaces is replaced here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        with current().importing():
            return getattr(import_module(self._name), attribute)
