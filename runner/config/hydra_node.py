"""What Hydra's own part of a composed config says: its folders, and the options that hide the program's."""

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
    with read_write(config), open_dict(config):
        del config["hydra"]
    return config


def directory(composed: DictConfig, key: str, base: Path | None = None) -> Path:
    """Returns a folder that Hydra writes into, absolute.

    Args:
      composed: what Hydra composed.
      key: that names the folder.
      base: what a relative path starts from; null: the current directory.

    Raises:
      ConfigError: it names none.
    """
    value = OmegaConf.select(composed, key)
    if value is None or not str(value).strip():
        raise invalid(key, value, problem="the path of a folder", fix="drop it to get the default")
    return (base or Path.cwd()) / str(value)


def say_replaced(composed: DictConfig) -> None:
    """Says which of the user's options hide the program's: a refusal may be about one of these."""
    for line in search_path.replaced(composed):
        print(f"note: {line}", file=sys.stderr, flush=True)
