"""The command `python -m runner.plan`: writes and prints plans, those of a multirun side by side."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.cluster.exiting import at_exit
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.console import size as size_text
from runner.engine import devices
from runner.host.outputs import quiet_native_log, required
from runner.plan import rows
from runner.plan.command import plan_config
from runner.plan.files import write_files
from runner.plan.table import plan_console, show

# Characters that the first column, and the column of one plan, need on a terminal.
_FIRST_COLUMN = 24
_PLAN_COLUMN = 26


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


def summary(folder: Path) -> dict[str, str]:
    """Returns the figures of the plan in a job's folder, per device and step, by title; empty if it has none."""
    path = folder / "plan.json"
    if not path.is_file():
        return {}
    plan = json.loads(path.read_text())
    totals = {kind: total["bytes_per_device"] for kind, total in plan["totals"].items()}
    traffic = plan["traffic"]
    return {
        "parameters + slots": size_text(totals["parameters"] + totals["slots"]),
        "gradients": size_text(totals["gradients"]),
        "activations": size_text(totals["activations"]),
        "collectives": _summed(traffic),
        "between processes": _summed([group for group in traffic if group["crosses"]]),
        "compute": f"{rows.operations(plan['flops_per_device'])}, {rows.duration(plan['compute_seconds'])}",
    }


def _summed(groups: Sequence[Mapping[str, float]]) -> str:
    if not groups:
        return "-"
    count = sum(group["count"] for group in groups)
    size = int(sum(group["bytes"] for group in groups))
    seconds = sum(group["seconds"] for group in groups)
    return f"{count}: {size_text(size)}, {rows.duration(seconds)}"
