"""Config-driven training on device meshes: checked, planned, verified and tracked.

From Python, as in a notebook:

    import runner

    config = runner.compose("mesh=batch8", "trainer.epochs=2")    # checked; nothing runs
    runner.plan(mesh="batch8", layout="fsdp")                     # a plan that shows its tables
    run = runner.train(mesh="batch8", trainer__epochs=2)          # in a process of its own
    runner.evaluate(run=run).plot()                               # a picture of its evaluation
    runner.open_run("latest").metrics                             # a pandas.DataFrame

Importing this package imports nothing else: each of these is imported when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runner.cli.fit import fit as fit
    from runner.cli.notebook import *  # noqa: F403
    from runner.errors import ConfigError as ConfigError

__version__ = "0.1.0"

_NOTEBOOK = (
    *("OpenedRun", "advise", "compare", "compose", "evaluate", "export", "open_run", "plan", "sweep", "train"),
    *("verify",),
)
_MODULES = {"ConfigError": "runner.errors", "fit": "runner.cli.fit", **dict.fromkeys(_NOTEBOOK, "runner.cli.notebook")}


class _Package(ModuleType):
    """Keeps `runner.train` a function when the module of that name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    attribute: object = getattr(import_module(_MODULES[name]), name)
    if isinstance(attribute, FunctionType):
        # `import runner.plan.memory as memory` finds the module by the name of what is here in place of its parent.
        attribute.__name__ = f"runner.{name}"
    globals()[name] = attribute  # the next access does not come here
    return attribute


def __dir__() -> list[str]:
    return sorted(_MODULES)
