"""The plans of a multirun, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.plan import rows
from runner.plan.base import FORMAT
from runner.plan.rates import PHASES
from runner.report import tables
from runner.sweep.jobs import Job


def comparison(jobs: Sequence[Job], shown: slice = slice(None)) -> rows.Rows:
    """Returns a table with one column per job: what varies, and memory, communication and compute per device.

    Args:
      jobs: of one multirun; a job whose folder has no plan.json has failed.
      shown: the columns to return. What varies is decided by all jobs.
    """
    labels = varying([job.overrides for job in jobs])
    names: list[str] = []
    descriptions: list[dict[str, str]] = []
    for label, job in list(zip(labels, jobs, strict=True))[shown]:
        plan = _read(job.folder)
        names.append(label or f"job {job.number}")
        descriptions.append({} if plan is None else _describe(plan))
    keys: dict[str, None] = {}
    for description in descriptions:
        keys |= dict.fromkeys(description)
    lines = []
    for key in keys or ["plan"]:
        cells = []
        for description in descriptions:
            cells.append(description.get(key, "-") if description else "failed")
        lines.append((key, *cells))
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
        own = [override for override in job_overrides if override not in shared]
        labels.append(" ".join(own))
    return labels


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / "plan.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    return content if content.get("format") == FORMAT else None


def _describe(plan: Mapping[str, Any]) -> dict[str, str]:
    totals = {kind: total["bytes_per_device"] for kind, total in plan["totals"].items()}
    lines = {
        "parameters + slots": tables.size(totals["parameters"] + totals["slots"]),
        "gradients": tables.size(totals["gradients"]),
        "activations, all layers": tables.size(totals["activations"]),
    }
    largest = max(plan["layers"], key=lambda layer: layer["bytes_per_device"], default=None)
    if largest is not None:
        lines["largest activation"] = f"{tables.size(largest['bytes_per_device'])} {largest['layer']}"
    for phase in PHASES:
        lines[f"{phase} collectives"] = _summed([group for group in plan["traffic"] if group["phase"] == phase])
    lines["all collectives"] = _summed(plan["traffic"])
    # Earlier releases wrote plans without processes.
    if plan.get("processes", 1) > 1:
        lines["between processes"] = _summed([group for group in plan["traffic"] if group["crosses"]])
    lines["compute"] = f"{rows.operations(plan['flops_per_device'])}, {rows.milliseconds(plan['compute_seconds'])}"
    return lines


def _summed(groups: Sequence[Mapping[str, Any]]) -> str:
    if not groups:
        return "-"
    count = sum(group["count"] for group in groups)
    size = sum(group["bytes"] for group in groups)
    seconds = sum(group["seconds"] for group in groups)
    return f"{count}: {tables.size(size)}, {rows.milliseconds(seconds)}"
