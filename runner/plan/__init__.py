"""The plan of a run: every variable's place, bytes a device, and what one training step communicates and computes.

`runner.plan(...)` is this package, called: a package and a function of one name in `runner` would hide each other,
depending on which was imported first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from runner.host.late import late

if TYPE_CHECKING:
    from runner.notebook import planning
else:
    planning = late("runner.notebook.planning")


class _Plan(ModuleType):
    def __call__(self, *overrides: str, config_dir: str | Path | None = None) -> planning.ShownPlan:
        """Plans a run without training; see `runner.notebook.planning.plan`."""
        return planning.plan(*overrides, config_dir=config_dir)


sys.modules[__name__].__class__ = _Plan
