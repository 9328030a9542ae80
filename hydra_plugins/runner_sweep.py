"""The runner's Hydra plugins. Hydra imports this module with every command, so it imports nothing heavy."""

from hydra.core.config_store import ConfigStore

from runner.sweep import plugins


class ProcessLauncher(plugins.ProcessLauncher):
    """`hydra/launcher=processes`."""


class GridSweeper(plugins.GridSweeper):
    """`hydra/sweeper=grid`."""


class SearchSweeper(plugins.SearchSweeper):
    """`hydra/sweeper=optuna`."""


class SubmititLauncher(plugins.SubmititLauncher):
    """`hydra/launcher=submitit_slurm` and `submitit_local`."""


def _make_default(group: str, option: str) -> None:
    """Gives Hydra's default of a group, `basic`, the meaning of an option of ours.

    Hydra prefers an override in our own defaults list to one in a preset, which then could not choose another.
    """
    ConfigStore.instance().store(group=group, name="basic", node={"defaults": [option]}, provider="runner")


_make_default("hydra/launcher", "processes")
_make_default("hydra/sweeper", "grid")
