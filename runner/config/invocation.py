"""The command line that this process was started with, as Hydra keeps it: to record it, and to write it again."""

from __future__ import annotations

import shlex

from hydra.core.hydra_config import HydraConfig

from runner.config.convert import as_typed
from runner.config.search_path import FOLDER_FLAG, NAME_FLAG, PRIMARY, named_folder, relative_to_project, sets_folders
from runner.host import session


def choices() -> dict[str, str]:
    """Returns the options by group of the config that this process composed, without groups that have none."""
    chosen = {}
    for group, option in HydraConfig.get().runtime.choices.items():
        # A group without an option has the choice None.
        if not group.startswith("hydra/") and str(option) != "None":
            chosen[group] = str(option)
    return chosen


def composed_with() -> list[str]:
    """Returns the arguments that a config was composed with, beside overrides, with folders as seen from the
    current one.
    """
    hydra = HydraConfig.get()
    arguments = []
    named = named_folder(session.current().arguments)
    if named is not None:
        arguments.append(f"{FOLDER_FLAG}={relative_to_project(str(named))}")
    # The recorded command must find the same options again.
    name = str(hydra.job.config_name)
    if name != PRIMARY:
        arguments.append(f"{NAME_FLAG}={name}")
    for override in as_typed(hydra.overrides.hydra):
        if sets_folders(override):
            arguments.append(relative_to_project(override))
    return arguments


def command(module: str) -> str:
    """Returns the command line of a module, as `runner.verify`, in one text, as a shell takes it."""
    return shlex.join(["python", "-m", module, *composed_with(), *as_typed(HydraConfig.get().overrides.task)])
