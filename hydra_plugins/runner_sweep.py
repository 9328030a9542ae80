"""The runner's Hydra plugins. Hydra imports this module with every command, so it imports nothing heavy."""

from runner.sweep import plugins


class ProcessLauncher(plugins.ProcessLauncher):
    """`hydra/launcher=processes`."""


class GridSweeper(plugins.GridSweeper):
    """`hydra/sweeper=grid`."""


class SearchSweeper(plugins.SearchSweeper):
    """`hydra/sweeper=optuna`."""


class SubmititLauncher(plugins.SubmititLauncher):
    """`hydra/launcher=submitit_slurm` and `submitit_local`."""
