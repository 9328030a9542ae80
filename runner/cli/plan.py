"""The command `python -m runner.plan`: writes and prints plans, those of a multirun side by side."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.cluster.exiting import at_exit
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.engine import devices
from runner.host.outputs import quiet_native_log, required
from runner.plan.command import plan_config
from runner.plan.files import write_files
from runner.plan.table import plan_console, show


def run(config: RunConfig, composed: DictConfig) -> None:
    """Writes and prints the plan."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = plan_console()
    for line in devices.device_lines(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    with quiet_native_log(folder / "runner.log"):
        plan = plan_config(config)
    with required(folder):
        content = OmegaConf.to_yaml(OmegaConf.create(resolved(composed, config.mesh, config.tracking.uri)))
        (folder / "config.yaml").write_text(content)
        # What the table of a multirun shows.
        summary = {name.replace("/", "_"): value for name, value in plan.metrics().items()}
        (folder / "summary.json").write_text(json.dumps(summary) + "\n")
    files = write_files(plan, folder)
    show(plan, console)
    names = ", ".join(path.name for path in files)
    console.print(f"written: {names} in {folder}", soft_wrap=True, markup=False)
    if "tensorflow" in sys.modules:
        at_exit(_leave)


def _leave(code: int) -> None:
    """Exits without tearing TensorFlow down, which would take most of a second."""
    logging.shutdown()  # `os._exit` runs no exit handlers
    os._exit(code)
