"""Config-driven training on device meshes: checked, planned, verified and tracked.

From Python, as in a notebook:

    import runner

    config = runner.compose("mesh=batch8", "trainer.epochs=2")    # checked; nothing runs
    runner.make_plan("mesh=batch8")                               # a plan that shows its tables
    run = runner.train("mesh=batch8", "trainer.epochs=2")         # in a process of its own
    runner.open_run("latest").metrics                             # a pandas.DataFrame

Importing this package imports nothing else: each of these is imported when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runner.cli.notebook import OpenedRun as OpenedRun
    from runner.cli.notebook import compose as compose
    from runner.cli.notebook import make_plan as make_plan
    from runner.cli.notebook import open_run as open_run
    from runner.cli.notebook import train as train
    from runner.errors import ConfigError as ConfigError

__version__ = "0.1.0"

_MODULES = {
    "ConfigError": "runner.errors",
    "compose": "runner.cli.notebook",
    "open_run": "runner.cli.notebook",
    "OpenedRun": "runner.cli.notebook",
    "train": "runner.cli.notebook",
    "make_plan": "runner.cli.notebook",
}


class _Package(ModuleType):
    """Keeps `runner.train` a function when the folder of that name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    attribute: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = attribute  # the next access does not come here
    return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
