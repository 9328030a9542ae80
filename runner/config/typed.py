"""The command line of this process, as it is recorded: it works again from the same folder, moved or not."""

from __future__ import annotations

import shlex

from hydra.core.hydra_config import HydraConfig

from runner.config.convert import as_typed
from runner.config.search_path import FLAG, KEY, NAME_FLAG, PRIMARY, named_folder, portable
from runner.host import session


def composed_with() -> list[str]:
    """Returns the arguments that a config was composed with, beside overrides, with folders as seen from the
    current one.
    """
    hydra = HydraConfig.get()
    arguments = []
    named = named_folder(session.current().arguments)
    if named is not None:
        arguments.append(f"{FLAG}={portable(str(named))}")
    # The recorded command must find the same options again.
    name = str(hydra.job.config_name)
    if name != PRIMARY:
        arguments.append(f"{NAME_FLAG}={name}")
    for override in as_typed(hydra.overrides.hydra):
        if override.startswith(f"{KEY}="):
            arguments.append(portable(override))
    return arguments


def command(module: str) -> str:
    """Returns the command line of a module, as `runner.verify`, in one text, as a shell takes it."""
    return shlex.join(["python", "-m", module, *composed_with(), *as_typed(HydraConfig.get().overrides.task)])
