"""The folder of a command's output, which Hydra makes, and the config in it."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from runner.host.outputs import required

CONFIG = "config.yaml"


def with_config(content: dict[str, object]) -> Path:
    """Writes a command's config into its folder, and returns the folder.

    Args:
      content: the resolved config, as plain values.

    Raises:
      PassingError: the folder can't be written.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    with required(folder):
        (folder / CONFIG).write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    return folder
