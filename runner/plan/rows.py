"""The plan's tables and notes as text, the same for the terminal and for plan.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.console import size
from runner.layout import mesh
from runner.layout.rules import alike_once
from runner.plan import known_errors, limits
from runner.plan.base import ARITHMETIC, MAY_FIT, TARGET, TOO_LARGE, Forecast, Plan, Traffic, VariablePlan
from runner.plan.memory import GRADIENTS

# Layers listed by the bytes of their outputs: enough to see which kind of layer is the largest.
_LARGEST = 3
# Equal variables of fewer blocks are shown one by one.
_FEWEST_ALIKE = 3
WHOLE = "replicated"
# Source of the memory of a plan for other hardware.
_DEPTHS = {ARITHMETIC: "estimated from shapes", TARGET: "compiled by its own compiler"}
NO_RULE = "no rule"
# What the column `link` says of a collective.
NETWORK = "between processes"
INSIDE = "inside one"
NODES = "between nodes"


@dataclass(frozen=True)
class Rows:
    """One table whose last columns are `numbers`; with `has_sum`, the last row is the sum of the others."""

    title: str
    columns: tuple[str, ...]
    numbers: int
    rows: tuple[tuple[str, ...], ...]
    has_sum: bool = False


def operations(count: float) -> str:
    """Returns a number of operations in decimal units, such as `1.24 GFLOP`."""
    unit = ""
    for larger in ("k", "M", "G", "T", "P"):
        if count < 1000:
            break
        count = count / 1000
        unit = larger
    return f"{count:.3g} {unit}FLOP"


def duration(seconds: float) -> str:
    """Returns a time in milliseconds, from a second on in seconds, with three digits."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1000 * seconds:.3g} ms"


def dims(shape: Sequence[int]) -> str:
    """Returns a shape as `784x128`; a scalar's is `1`."""
    return "x".join(map(str, shape)) or "1"


def spec_words(spec: Sequence[str | None]) -> str:
    """Returns a spec as `[-, model]`, or `replicated` if no axis shards the tensor."""
    if not any(spec):
        return WHOLE
    return "[" + ", ".join(axis or "-" for axis in spec) + "]"


def title(plan: Plan) -> str:
    """Returns the plan in one line: model, mesh, layout, batch."""
    parts = []
    for group in ("model", "layout", "optimizer", "dataset"):
        if group in plan.choices:
            parts.append(f"{group}={plan.choices[group]}")
    processes = ""
    if plan.processes > 1:
        processes = f", {plan.processes} processes"
    parts.append(f"mesh {mesh.describe(dict(plan.axes))} ({plan.rates.device}{processes})")
    parts.append(f"batch {plan.batch_size}")
    return ", ".join(parts)


def alike_joined(variables: Sequence[VariablePlan]) -> list[VariablePlan]:
    """Returns variables with those of equal blocks as one: `block_*/mlp/kernel (x12)`, with the bytes of all.

    Equal are variables that differ only in the first number of their paths, which is the block's. Two are still read
    faster one by one.
    """
    groups: dict[tuple[str, VariablePlan], list[VariablePlan]] = {}
    for variable in variables:
        pattern = re.sub(r"\d+", "*", variable.path, count=1)
        same = replace(variable, path="", passed=(), reason="")
        groups.setdefault((pattern, same), []).append(variable)
    joined = []
    for (pattern, _), group in groups.items():
        if len(group) < _FEWEST_ALIKE:
            joined += group
            continue
        count = len(group)
        one = group[0]
        sums = replace(
            one,
            path=f"{pattern} (x{count})",
            bytes=count * one.bytes,
            bytes_per_device=count * one.bytes_per_device,
            moved_bytes=count * one.moved_bytes,
        )
        joined.append(sums)
    return joined


def variables(plan: Plan, *, join: bool = False) -> Rows:
    """Returns every variable's sharding, and its bytes and communication per device and step.

    With `join`, those of equal blocks are shown as one; without it, the table also has the rules' reasons.
    """
    shown: Sequence[VariablePlan] = plan.variables
    if join:
        shown = alike_joined(plan.variables)
    dtypes = sorted({variable.dtype for variable in plan.variables})
    # If all dtypes are equal, the title states it, and the others have the column's room.
    has_dtype = len(dtypes) != 1
    has_reason = not join and any(variable.reason for variable in plan.variables)
    rows = []
    for variable in shown:
        cells = [variable.path, dims(variable.shape)]
        if has_dtype:
            cells.append(variable.dtype)
        cells.append(variable.rule.removeprefix("layout.") or NO_RULE)
        cells.append(spec_words(variable.spec))
        if has_reason:
            cells.append(variable.reason)
        moved = size(variable.moved_bytes) if variable.moved_bytes else "-"
        rows.append((*cells, size(variable.bytes), size(variable.bytes_per_device), moved))

    # The optional columns come where the cells of the rows above have them.
    columns = ["variable", "shape", "rule", "spec", "bytes", "per device", "moved"]
    if has_reason:
        columns.insert(columns.index("bytes"), "why")
    heading = "Variables"
    if has_dtype:
        columns.insert(columns.index("rule"), "dtype")
    else:
        heading += f", all {dtypes[0]}"
    if len(shown) < len(plan.variables):
        heading += "; of equal ones the sum"
    return Rows(heading, tuple(columns), 3, tuple(rows))


def verdict(plan: Plan) -> list[str]:
    """Returns what a run needs of the hardware that it is planned for, the verdict first.

    Whether it fits, by how much and its largest part; the step's time and what bounds it; what to change. Empty for
    this machine's devices.
    """
    forecast = plan.forecast
    if forecast is None:
        return []
    largest = max(forecast.memory, key=lambda part: part.bytes)
    peak = size(forecast.peak_bytes)
    line = f"needs {peak} per device on hardware={forecast.hardware}"
    if forecast.capacity_bytes:
        line = forecast.verdict
        if forecast.setting:
            line += f" with {forecast.setting}"
        line += f": {peak} of {size(forecast.capacity_bytes)} per device of hardware={forecast.hardware}"
        if forecast.fits:
            margin = forecast.capacity_bytes - forecast.peak_bytes
            line += f", {size(margin)} free"
            error = known_errors.memory_p90(forecast.depth)
            if margin < error * forecast.peak_bytes:
                may_err = f"{error:.0%} ({size(round(error * forecast.peak_bytes))})"
                line += f", less than the {may_err} that this estimate may err by"
        else:
            line += f", {size(forecast.peak_bytes - forecast.capacity_bytes)} too much"
    lines = []
    if forecast.undivided:
        fix = "use another number of devices"
        if forecast.split_axes:
            fix = f"shard over fewer with replicas: {mesh.override(forecast.split_axes)}"
        lines.append(f"{forecast.undivided}; {fix}")
    lines.append(f"{line}; the largest part is {largest.kind}, {size(largest.bytes)} ({_DEPTHS[forecast.depth]})")
    if forecast.memory_share and forecast.verdict != TOO_LARGE:
        lines.append(_taken(forecast))
    if forecast.verdict == MAY_FIT:
        lines.append("  XLA may need far less than this estimate: set plan.compiler=target to compile the step")
    if not forecast.fits:
        devices = mesh.size(dict(plan.axes))
        lines.append(f'  to fit: see "Out of memory" in the docs, or run python -m runner.advise devices={devices}')
    fastest, slowest = forecast.step_seconds
    step = f"step time: {duration(fastest)} to {duration(slowest)}, bound by {forecast.bound}"
    step += f" (compute {duration(forecast.compute_seconds[0])} to {duration(forecast.compute_seconds[1])}"
    step += f", device memory {duration(forecast.memory_seconds)}, links {duration(forecast.link_seconds)})"
    lines.append(step)
    if forecast.tokens:
        devices = mesh.size(dict(plan.axes))
        slow = forecast.tokens / slowest
        fast = forecast.tokens / fastest
        rate = f"tokens per second: {slow:,.0f} to {fast:,.0f}, "
        rate += f"per device {slow / devices:,.0f} to {fast / devices:,.0f}"
        lines.append(rate)
    if forecast.mixture:
        lines.append(f"  {forecast.mixture}; the step time above includes that")
    lines.append(known_errors.line(forecast.depth, forecast.hardware, plan.choices.get("model", "custom")))
    return lines


def _taken(forecast: Forecast) -> str:
    """Returns how much of a GPU's memory JAX takes, and how it takes more."""
    whole = round(forecast.capacity_bytes / forecast.memory_share)
    if forecast.setting:
        return f"  by default, JAX takes {limits.DEFAULT:.0%} of {size(whole)}: set this variable for the run"
    line = f"  JAX takes {forecast.memory_share:.0%} of {size(whole)}"
    if forecast.memory_share != limits.DEFAULT:
        return f"{line}, as {limits.VARIABLE} says"
    return f"{line} by default; to let it take more, set {limits.VARIABLE}={limits.LARGEST}"


def memory(plan: Plan) -> Rows:
    """Returns one device's memory by kind: at the peak of a step on hardware that is not here, else of all arrays."""
    rows: list[tuple[str, ...]] = []
    if plan.forecast is not None:
        # At a peak without whole gradients, those of the block at work are among what the last part has.
        last = [part.kind for part in plan.forecast.memory if part.bytes][-1]
        for part in plan.forecast.memory:
            source: str = part.source
            if part.kind == GRADIENTS and not part.bytes:
                source = f"in {last}"
            rows.append((part.kind, size(part.bytes), source))
        rows.append(("peak", size(plan.forecast.peak_bytes), ""))
        heading = "Memory of one device at the peak of a step"
        return Rows(heading, ("", "bytes", "source"), 2, tuple(rows), has_sum=True)
    names = {"slots": "optimizer state", "activations": "activations, all layers", "copies": "bfloat16 copies of them"}
    for kind, total in plan.totals.items():
        rows.append((names.get(kind, kind), size(total.bytes), size(total.bytes_per_device), total.source))
    for layer in sorted(plan.layers, key=lambda layer: -layer.bytes_per_device)[:_LARGEST]:
        name = f"  {layer.layer}: {dims(layer.shape)} {spec_words(layer.spec)}"
        rows.append((name, "", size(layer.bytes_per_device), "estimated"))
    return Rows("Memory", ("", "whole", "per device", "source"), 3, tuple(rows))


def program(plan: Plan) -> Rows:
    """Returns the memory and operations of the step's program; no rows if its compiler does not count them."""
    cost = plan.program
    rows: list[tuple[str, str]] = []
    if cost is not None:
        results = cost.output_bytes - cost.reused_bytes
        accessed = round(cost.accessed_bytes)
        counts: list[tuple[str, float, str]] = [
            ("state, cached examples and the batches of a call", cost.argument_bytes, size(cost.argument_bytes)),
            ("results that reuse no argument's memory", results, size(results)),
            ("temporaries", cost.temporary_bytes, size(cost.temporary_bytes)),
            ("operations per step", cost.flops, operations(cost.flops)),
            ("memory read and written per step", accessed, size(accessed)),
        ]
        # The compilers of other hardware leave some figures out, and give 0 for them.
        for name, count, text in counts:
            if count or plan.forecast is None:
                rows.append((name, text))
    return Rows("The step's program, counted by its compiler", ("", "per device"), 1, tuple(rows))


def traffic(plan: Plan) -> Rows:
    """Returns the collectives of one step by phase, kind and axis; with several processes, by link too."""
    has_link = plan.processes > 1 or any(group.crosses for group in plan.traffic)
    rows: list[tuple[str, ...]] = []
    for group in plan.traffic:
        cells = [group.phase, group.kind, group.axis]
        if has_link:
            cells.append(network(plan) if group.crosses else INSIDE)
        rows.append((*cells, str(group.count), size(group.bytes), duration(group.seconds)))
    if rows:
        count, moved, seconds = traffic_sum(plan.traffic)
        cells = ["all", "", ""]
        if has_link:
            cells.append("")
        rows.append((*cells, str(count), size(moved), duration(seconds)))
    columns = ["phase", "kind", "axis", "count", "bytes", "time"]
    if has_link:
        columns.insert(columns.index("count"), "link")
    heading = "Collectives of one training step, counted in its program"
    if plan.program is None:
        heading = "Collectives of one training step, estimated from the layout"
    return Rows(heading, tuple(columns), 3, tuple(rows), has_sum=bool(rows))


def network(plan: Plan) -> str:
    """Returns what a plan's network joins, in words."""
    if plan.rates.joins_nodes:
        return NODES
    return NETWORK


def traffic_sum(groups: Sequence[Traffic]) -> tuple[int, int, float]:
    """Returns count, bytes and seconds of all groups."""
    count = sum(group.count for group in groups)
    moved = sum(group.bytes for group in groups)
    seconds = sum(group.seconds for group in groups)
    return count, moved, seconds


def in_a_line(plan: Plan) -> str:
    """Returns memory per device, whether it fits if that is known, and communication per step."""
    activations = plan.totals["activations"].bytes_per_device
    state = sum(total.bytes_per_device for total in plan.totals.values()) - activations
    line = f"{size(state)} of state and {size(activations)} of activations per device"
    if plan.rates.device == "cpu":
        # The virtual devices of a machine's processes share its memory.
        devices = mesh.size(dict(plan.axes)) // plan.machines
        needed = devices * (state + activations)
        memory = limits.host_bytes()
        verdict = "does not fit"
        if needed < memory:
            verdict = "fits"
        line += f", {verdict}: {size(needed)} of this machine's {size(memory)}"
    _, moved, _ = traffic_sum(plan.traffic)
    if moved:
        return f"{line}; a step communicates {size(moved)} per device"
    return f"{line}; a step communicates nothing"


def notes(plan: Plan) -> list[str]:
    """Returns what the tables leave out: how times are estimated, and rules that did not fit a variable."""
    _, _, communication = traffic_sum(plan.traffic)
    rates = plan.rates
    between = ""
    if rates.network_gb_s:
        between = f", {network(plan)} {rates.network_gb_s:,.3g} GB/s"
    lines = [
        f"compute: {operations(plan.flops_per_device)} per device and step (estimated), "
        f"{duration(plan.compute_seconds)} at {rates.gflops:,.4g} GFLOP/s; "
        f"collectives: {duration(communication)} at {rates.bandwidth_gb_s:,.3g} GB/s{between}",
        f"rates of one device: {rates.note}; times have no latency and no overlap",
    ]
    if plan.steps:
        length = f"{plan.steps:,} steps of training"
        if plan.schedule:
            length += f", {plan.schedule}"
        lines.append(length)
    if plan.processes > 1:
        lines.append(_crossing(plan))
    if not plan.traffic:
        lines.append("a step communicates nothing")
    for warning in plan.warnings:
        lines.append(f"warning: {warning}")
    passed = []
    for variable in plan.variables:
        for note in variable.passed:
            passed.append(f"{variable.path}: {note}")
    # Equal blocks have equal notes, which are printed once.
    return [*lines, *alike_once(passed)]


def _crossing(plan: Plan) -> str:
    inside = []
    for axis, count in plan.axes.items():
        if count > 1 and axis not in plan.crossing:
            inside.append(axis)
    devices = mesh.size(dict(plan.axes)) // plan.processes
    noun = "device" if devices == 1 else "devices"
    verb = "crosses" if len(plan.crossing) == 1 else "cross"
    line = f"{plan.processes} processes of {devices} {noun}: {', '.join(plan.crossing)} {verb} them"
    if inside:
        verb = "is" if len(inside) == 1 else "are"
        line += f"; {', '.join(inside)} {verb} inside one"
    return line
