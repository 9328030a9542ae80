"""The command `python -m runner.plan`: writes and prints plans, those of a multirun side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.cli.sweep.jobs import Job
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.engine import devices
from runner.host import tables
from runner.host.logs import quiet_native_log
from runner.host.outputs import required
from runner.plan import rows
from runner.plan.command import plan_config
from runner.plan.files import write_files
from runner.plan.rates import PHASES
from runner.plan.table import plan_console, rich_table, show

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
        content = OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed)))
        (folder / "config.yaml").write_text(content)
    files = write_files(plan, folder)
    show(plan, console)
    names = ", ".join(path.name for path in files)
    console.print(f"written: {names} in {folder}", soft_wrap=True, markup=False)


def compare(jobs: Sequence[Job]) -> None:
    """Prints the plans of a multirun's jobs side by side, as many per table as the terminal has room for."""
    console = plan_console()
    count = max((console.width - _FIRST_COLUMN) // _PLAN_COLUMN, 1)
    for start in range(0, len(jobs), count):
        console.print(rich_table(comparison(jobs, slice(start, start + count)), console.width))
        console.print()


def comparison(jobs: Sequence[Job], shown: slice = slice(None)) -> rows.Rows:
    """Returns a table with one column per job.

    Its rows are what varies, and memory, communication and compute per device.

    Args:
      jobs: of one multirun; a job whose folder has no plan.json has failed.
      shown: the columns to return. What varies is decided by all jobs.
    """
    labels = varying([job.overrides for job in jobs])
    names: list[str] = []
    # Empty for a job without a plan.
    descriptions: list[dict[str, str]] = []
    for label, job in list(zip(labels, jobs, strict=True))[shown]:
        names.append(label or f"job {job.number}")
        descriptions.append(_description(job.folder))
    # A dict, and not a set, keeps the order in which the keys are met.
    keys: dict[str, None] = {}
    for description in descriptions:
        keys |= dict.fromkeys(description)
    lines = []
    for key in keys or ["plan"]:
        cells = [key]
        for description in descriptions:
            if description:
                cells.append(description.get(key, "-"))
            else:
                cells.append("failed")
        lines.append(tuple(cells))
    return rows.Rows("Plans compared, per device and step", ("", *names), len(names), tuple(lines))


def varying(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns, for each job, the overrides that not every job has.

    Example:
      >>> varying([["dataset=digits", "layout=fsdp"], ["dataset=digits", "layout=megatron"]])
      ['layout=fsdp', 'layout=megatron']
    """
    if not overrides:
        return []
    shared = set.intersection(*map(set, overrides))
    labels = []
    for job_overrides in overrides:
        own = []
        for override in job_overrides:
            if override not in shared:
                own.append(override)
        labels.append(" ".join(own))
    return labels


def _description(folder: Path) -> dict[str, str]:
    """Returns the figures of a job's plan by name; empty if it has no plan."""
    path = folder / "plan.json"
    if not path.is_file():
        return {}
    plan = json.loads(path.read_text())

    def total(kind: str) -> int:
        per_device: int = plan["totals"][kind]["bytes_per_device"]
        return per_device

    lines = {
        "parameters + slots": tables.size(total("parameters") + total("slots")),
        "gradients": tables.size(total("gradients")),
        "activations, all layers": tables.size(total("activations")),
    }
    largest = max(plan["layers"], key=lambda layer: layer["bytes_per_device"], default=None)
    if largest is not None:
        lines["largest activation"] = f"{tables.size(largest['bytes_per_device'])} {largest['layer']}"
    groups_by_phase: dict[str, list[Mapping[str, Any]]] = {phase: [] for phase in PHASES}
    crossing_groups = []
    for group in plan["traffic"]:
        groups_by_phase[group["phase"]].append(group)
        if group["crosses"]:
            crossing_groups.append(group)
    for phase, groups in groups_by_phase.items():
        lines[f"{phase} collectives"] = _summed(groups)
    lines["all collectives"] = _summed(plan["traffic"])
    if plan["processes"] > 1:
        lines["between processes"] = _summed(crossing_groups)
    lines["compute"] = f"{rows.operations(plan['flops_per_device'])}, {rows.duration(plan['compute_seconds'])}"
    return lines


def _summed(groups: Sequence[Mapping[str, Any]]) -> str:
    if not groups:
        return "-"
    count = sum(group["count"] for group in groups)
    size = sum(group["bytes"] for group in groups)
    seconds = sum(group["seconds"] for group in groups)
    return f"{count}: {tables.size(size)}, {rows.duration(seconds)}"
