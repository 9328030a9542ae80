"""The command line of this process, as it is recorded: it works again from the same folder, moved or not."""

from __future__ import annotations

import shlex

from hydra.core.hydra_config import HydraConfig

from runner.config.convert import as_typed
from runner.config.search_path import FLAG, KEY, NAME_FLAG, PRIMARY, portable


def composed_with() -> list[str]:
    """Returns what, beside the overrides of the run, its config was composed with, one argument each.

    Folders below the current directory are named from there.
    """
    hydra = HydraConfig.get()
    named = [one.path for one in hydra.runtime.config_sources if one.provider == "command-line"]
    name = str(hydra.job.config_name)
    return [
        *(f"{FLAG}={portable(folder)}" for folder in named),
        *([f"{NAME_FLAG}={name}"] if name != PRIMARY else []),
        *(portable(one) for one in as_typed(hydra.overrides.hydra) if one.startswith(f"{KEY}=")),
    ]


def command(module: str) -> str:
    """Returns the command line in one text, as a shell takes it.

    Args:
      module: of the command, as `runner.verify`.
    """
    return shlex.join(["python", "-m", module, *composed_with(), *as_typed(HydraConfig.get().overrides.task)])
