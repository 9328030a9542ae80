"""The plans of a multirun side by side."""

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
    """Returns a column a job: what varies, what a device holds, communicates and computes.

    Args:
      jobs: of one multirun; one whose folder has no plan.json has failed.
      shown: which of them.
    """
    plans = [_read(job.folder) for job in jobs]
    labels = varying([job.overrides for job in jobs])
    names = [label or f"job {job.number}" for label, job in zip(labels, jobs, strict=True)]
    described = [_describe(plan) if plan is not None else {} for plan in plans]
    names = names[shown]
    described = described[shown]
    keys = list(dict.fromkeys(key for each in described for key in each)) or ["plan"]
    lines = [(key, *(each.get(key, "failed" if not each else "-") for each in described)) for key in keys]
    return rows.Rows("Plans compared, a device and step", ("", *names), len(names), tuple(lines))


def varying(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Returns, for each job, the overrides that not every job has.

    Example:
      >>> varying([["dataset=digits", "layout=fsdp"], ["dataset=digits", "layout=megatron"]])
      ['layout=fsdp', 'layout=megatron']
    """
    shared = set.intersection(*(set(each) for each in overrides)) if overrides else set()
    return [" ".join(item for item in each if item not in shared) for each in overrides]


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / "plan.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    return content if content.get("format") == FORMAT else None


def _describe(plan: Mapping[str, Any]) -> dict[str, str]:
    totals = plan["totals"]
    held = totals["parameters"]["bytes_per_device"] + totals["slots"]["bytes_per_device"]
    lines = {
        "parameters + slots": tables.size(held),
        "gradients": tables.size(totals["gradients"]["bytes_per_device"]),
        "activations, all layers": tables.size(totals["activations"]["bytes_per_device"]),
    }
    largest = max(plan["layers"], key=lambda layer: layer["bytes_per_device"], default=None)
    if largest is not None:
        lines["largest activation"] = f"{tables.size(largest['bytes_per_device'])} {largest['layer']}"
    for phase in PHASES:
        lines[f"{phase} collectives"] = _moved([each for each in plan["traffic"] if each["phase"] == phase])
    lines["all collectives"] = _moved(plan["traffic"])
    if plan.get("processes", 1) > 1:
        lines["between processes"] = _moved([each for each in plan["traffic"] if each["crosses"]])
    lines["compute"] = f"{rows.operations(plan['flops_per_device'])}, {rows.milliseconds(plan['compute_seconds'])}"
    return lines


def _moved(groups: Sequence[Mapping[str, Any]]) -> str:
    if not groups:
        return "-"
    count = sum(each["count"] for each in groups)
    moved = sum(each["bytes"] for each in groups)
    return f"{count}: {tables.size(moved)}, {rows.milliseconds(sum(each['seconds'] for each in groups))}"
