"""OmegaConf resolvers of conf/config.yaml: where runs write."""

from __future__ import annotations

from omegaconf import OmegaConf

from runner.host.paths import outputs_dir, random_part
from runner.tracking.location import sqlite_uri


def register_resolvers() -> None:
    """Registers the resolvers, for this process's current project folder."""
    OmegaConf.register_new_resolver("runner_outputs", lambda: str(outputs_dir()), replace=True)
    OmegaConf.register_new_resolver("runner_database", lambda name: sqlite_uri(outputs_dir() / name), replace=True)
    # Drawn once per command: Hydra resolves a folder's name several times, and must get the same one.
    part = random_part()
    OmegaConf.register_new_resolver("runner_random", lambda: part, replace=True)
