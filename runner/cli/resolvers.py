"""OmegaConf resolvers of conf/config.yaml: where runs write."""

from __future__ import annotations

from omegaconf import OmegaConf

from runner.host import paths
from runner.tracking.location import sqlite_uri


def register_resolvers() -> None:
    """Registers the resolvers, for this process's current project folder."""
    OmegaConf.register_new_resolver("runner_outputs", lambda: str(paths.outputs_dir()), replace=True)
    OmegaConf.register_new_resolver("runner_database", _database, replace=True)
    # Drawn once per command: Hydra resolves a folder's name several times, and must get the same one.
    random_part = paths.random_part()
    OmegaConf.register_new_resolver("runner_random", lambda: random_part, replace=True)


def _database(name: str) -> str:
    return sqlite_uri(paths.outputs_dir() / name)
