"""What the picture of a plan shows: the memory of a device, the timeline of a step, and the shards of variables."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

from runner import figures
from runner.console import size
from runner.layout import mesh
from runner.plan import limits, rows
from runner.plan.base import Plan, VariablePlan
from runner.plan.forecast import LINK_EFFICIENCY

# Variables drawn, the largest: a picture of more is too tall to read.
_MOST = 48
# Characters that fit.
_TITLE = 110
_PATH = 44
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# A limit of so many times the memory is not drawn: the bar would be too short to read.
_BEYOND = 20
_COMPUTE = "compute"


def draw(plan: Plan, path: Path) -> None:
    """Draws a plan into a PNG file, of its variables those with the most bytes."""
    variables = rows.alike_joined(plan.variables)
    # The sort is stable: of variables of one size, the model's first ones are shown. They stay in the model's order.
    largest = sorted(range(len(variables)), key=lambda index: -variables[index].bytes)[:_MOST]
    shown = [_sharded(plan, variables[index]) for index in sorted(largest)]
    title = textwrap.fill(rows.title(plan), _TITLE)
    if len(shown) < len(variables):
        title += f"\nthe {len(shown)} largest of {len(variables)} variables"
    names = []
    for axis, count in plan.axes.items():
        name = f"{axis}={count}"
        if axis in plan.crossing:
            name += f" {rows.NETWORK}"
        names.append(name)
    figures.plan(path, title, [memory(plan), timeline(plan)], plan.axes, names, shown)


def _sharded(plan: Plan, variable: VariablePlan) -> figures.Sharded:
    shards = 1
    others = []
    for axis, count in plan.axes.items():
        if axis in variable.spec:
            shards *= count
        elif count > 1:
            others.append(axis)
    replicas = mesh.size(dict(plan.axes)) // shards
    words = "whole"
    if shards > 1:
        words = f"one of {shards} shards"
    if replicas > 1:
        words += f", {replicas} replicas over {'+'.join(others)}"
    return figures.Sharded(
        textwrap.fill(variable.path, _PATH),
        f"{rows.dims(variable.shape)}  {variable.dtype}  {rows.spec_words(variable.spec)}",
        variable.shape,
        variable.spec,
        variable.bytes,
        variable.bytes_per_device,
        f"{size(variable.bytes_per_device)} of {size(variable.bytes)}\n{words}",
    )


def memory(plan: Plan) -> figures.Bars:
    """Returns one device's memory by kind: at the peak of a step, or of all arrays that the plan counts."""
    amounts: dict[str, int] = {}
    if plan.forecast is not None:
        for part in plan.forecast.memory:
            amounts[part.kind] = part.bytes
    else:
        names = {"slots": "optimizer state", "parameters": "weights", "copies": "bfloat16 copies"}
        for name, total in plan.totals.items():
            amounts[names.get(name, name)] = total.bytes_per_device
    total_bytes = sum(amounts.values())
    heading = f"memory of one device: {size(total_bytes)}"
    limit = capacity_bytes(plan)
    if limit:
        heading += f" of {size(limit)}"
    if limit > _BEYOND * total_bytes:
        limit = 0
    elif limit:
        heading += " (red line)"
    unit = size(max(total_bytes, limit)).split()[1]
    bytes_of_unit = 1024 ** _UNITS.index(unit)
    bar = []
    legend = {}
    for (name, count), color in zip(amounts.items(), itertools.cycle(figures.SERIES), strict=False):
        bar.append((name, count / bytes_of_unit))
        legend[name] = (f"{name} {size(count)}", color)
    return figures.Bars(heading, unit, {"": bar}, legend, limit / bytes_of_unit)


def capacity_bytes(plan: Plan) -> int:
    """Returns the bytes of one device's memory; 0: not known. Virtual devices of a CPU share the machine's."""
    if plan.forecast is not None:
        return plan.forecast.capacity_bytes
    if plan.rates.device != "cpu":
        return 0
    return limits.host_bytes() * plan.machines // mesh.size(dict(plan.axes))


def timeline(plan: Plan) -> figures.Bars:
    """Returns a step without overlap and with the slowest compute, and one with full overlap and the fastest."""
    fastest, slowest = compute_range_s(plan)
    links = link_seconds(plan)
    communication = sum(links.values())
    overlapped = rows.duration(max(fastest, communication))
    computed = rows.duration(fastest)
    if slowest > fastest:
        overlapped += f" to {rows.duration(max(slowest, communication))}"
        computed += f" to {rows.duration(slowest)}"
    heading = f"one step: {overlapped} if all communication overlaps with compute, "
    heading += f"{rows.duration(slowest + communication)} if none does"
    rate = ""
    if plan.forecast is not None:
        # The tables show times at the full link rate.
        rate = f" at {LINK_EFFICIENCY:.0%} of the links' rate"
    moved = []
    legend = {_COMPUTE: (f"{_COMPUTE} {computed}", figures.COMPUTE)}
    for (name, seconds), color in zip(links.items(), itertools.cycle(figures.SERIES), strict=False):
        moved.append((name, 1000 * seconds))
        legend[name] = (f"{name} {rows.duration(seconds)}{rate}", color)
    bars = {
        "no overlap,\nslowest compute": [(_COMPUTE, 1000 * slowest), *moved],
        "full overlap,\nfastest compute": [(_COMPUTE, 1000 * fastest)],
        "collectives": moved,
    }
    return figures.Bars(heading, "ms", bars, legend)


def link_seconds(plan: Plan) -> dict[str, float]:
    """Returns the time of a step's collectives by axis, at the share of the bandwidth that links reach."""
    share = 1.0
    if plan.forecast is not None:
        share = LINK_EFFICIENCY
    seconds: dict[str, float] = {}
    for group in plan.traffic:
        name = f"collectives over {group.axis}"
        seconds[name] = seconds.get(name, 0.0) + group.seconds / share
    return seconds


def compute_range_s(plan: Plan) -> tuple[float, float]:
    """Returns the seconds that a device computes in a step, with its memory traffic: fastest and slowest."""
    if plan.forecast is None:
        return plan.compute_seconds, plan.compute_seconds
    # As in the forecast: products and what goes through the device's memory follow each other.
    fastest, slowest = plan.forecast.compute_seconds
    moved = plan.forecast.memory_seconds
    return fastest + moved, slowest + moved
