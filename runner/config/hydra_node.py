"""Access to Hydra's own part of a composed config: its folders, and notes on replaced options."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.config import search_path
from runner.errors import invalid


def without_hydra(composed: DictConfig) -> DictConfig:
    """Returns a copy without Hydra's own part."""
    config = copy.deepcopy(composed)
    # Hydra's own part is read-only, and the config a struct, whose keys can't be deleted.
    with read_write(config), open_dict(config):
        del config["hydra"]
    return config


def directory(composed: DictConfig, key: str, base: Path | None = None) -> Path:
    """Returns the absolute path of a folder that Hydra writes into, relative to `base` or the current directory.

    Raises:
      ConfigError: the key has no path.
    """
    value = OmegaConf.select(composed, key)
    if value is None or not str(value).strip():
        raise invalid(key, value, problem="must be the path of a folder", fix="remove it to use the default")
    return (base or Path.cwd()) / str(value)


def say_replaced(composed: DictConfig) -> None:
    """Prints which of the user's options replace built-in ones: the next error may be about one of these."""
    for line in search_path.replaced(composed):
        print(f"note: {line}", file=sys.stderr, flush=True)
