"""The plan's tables as rows of words, the same for the terminal and for plan.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from runner.layout import mesh
from runner.layout.rules import alike_once
from runner.plan.base import Plan, Traffic, VariablePlan
from runner.plan.fold import Fold, folded
from runner.report.tables import size

_LARGEST = 3  # layers listed by what their outputs take of a device
WHOLE = "replicated"
NO_RULE = "no rule"
# of a collective
NETWORK = "between processes"
INSIDE = "inside one"


@dataclass(frozen=True)
class Rows:
    """One table.

    Attributes:
      title: what it shows.
      columns: their headings.
      numbers: how many of the columns, from the right, hold numbers.
      rows: a word a column.
      has_sum: the last row adds up the others.
    """

    title: str
    columns: tuple[str, ...]
    numbers: int
    rows: tuple[tuple[str, ...], ...]
    has_sum: bool = False


def operations(count: float) -> str:
    """Returns a number of operations in decimal units, three digits: `1.24 GFLOP`."""
    unit = ""
    for larger in ("k", "M", "G", "T", "P"):
        if count < 1000:
            break
        count = count / 1000
        unit = larger
    return f"{count:.3g} {unit}FLOP"


def milliseconds(seconds: float) -> str:
    """Returns a time in milliseconds, three digits."""
    return f"{1000 * seconds:.3g} ms"


def dims(shape: Sequence[int]) -> str:
    """Returns a shape as `784x128`; a scalar's is `1`."""
    return "x".join(map(str, shape)) or "1"


def spec_words(spec: Sequence[str | None]) -> str:
    """Returns a spec as `[-, model]`, `replicated` where no axis splits the tensor."""
    return "[" + ", ".join(axis or "-" for axis in spec) + "]" if any(spec) else WHOLE


def title(plan: Plan) -> str:
    """Returns the plan in a line: model, mesh, layout, batch."""
    chosen = [
        f"{key}={plan.choices[key]}" for key in ("model", "layout", "optimizer", "dataset") if key in plan.choices
    ]
    shared = f", {plan.processes} processes" if plan.processes > 1 else ""
    where = f"mesh {mesh.describe(dict(plan.axes))} ({plan.rates.device}{shared})"
    return ", ".join([*chosen, where, f"batch {plan.batch_size}"])


def broken(path: str, fits: Callable[[str], bool], indent: str) -> list[str]:
    """Returns a path in lines that fit, each broken after its last slash; a part that does not fit is left whole."""
    lines = [""]
    for part in path.replace("/", "/\0").split("\0"):
        if lines[-1].strip() and not fits(lines[-1] + part):
            lines.append(indent)
        lines[-1] += part
    return lines


def variables(plan: Plan, *, fold: bool = False) -> Rows:
    """Returns every variable's place, and what a device holds and communicates of it in a step.

    Args:
      plan: of the run.
      fold: equal blocks that follow each other are one, headed by the sums over all of them; else the rules' reasons
        are told too.
    """
    kinds = sorted({each.dtype for each in plan.variables})
    alike = len(kinds) == 1  # then the title says it, and the column's room goes to the others
    rows: list[tuple[str, ...]] = []
    explained = not fold and any(each.reason for each in plan.variables)
    groups = folded(plan.variables) if fold else [Fold("", 1, (each,)) for each in plan.variables]
    for group in groups:
        if group.name:
            rows.append((group.name, "", *([] if alike else [""]), "", "", *_bytes(group.variables, group.count)))
        rows += [
            (
                f"{'  ' if group.name else ''}{each.path}",
                dims(each.shape),
                *([] if alike else [each.dtype]),
                each.rule.removeprefix("layout/") or NO_RULE,
                spec_words(each.spec),
                *([each.reason] if explained else []),
                *_bytes([each]),
            )
            for each in group.variables
        ]
    left = ("variable", "shape", *([] if alike else ["dtype"]), "rule", "spec", *(["why"] if explained else []))
    title_ = f"Variables, all {kinds[0]}" if alike else "Variables"
    title_ += "; of equal blocks the sum, then one of them" if any(group.name for group in groups) else ""
    return Rows(title_, (*left, "bytes", "a device", "moved"), 3, tuple(rows))


def _bytes(variables: Sequence[VariablePlan], times: int = 1) -> tuple[str, str, str]:
    """Returns what variables take, what a device holds of them, and what a step moves."""
    whole, held, moved = (
        times * sum(getattr(each, name) for each in variables) for name in ("bytes", "bytes_per_device", "moved_bytes")
    )
    return size(whole), size(held), size(moved) if moved else "-"


def totals(plan: Plan) -> Rows:
    """Returns what one device holds, and the layers whose outputs take most of it."""
    names = {"parameters": "parameters", "gradients": "gradients", "slots": "optimizer slots"}
    names |= {"activations": "activations, all layers", "copies": "bfloat16 copies of them"}
    rows = [
        (names[key], size(total.bytes), size(total.bytes_per_device), total.source)
        for key, total in plan.totals.items()
    ]
    for layer in plan.largest_activations[:_LARGEST]:
        shape = f"{dims(layer.shape)} {spec_words(layer.spec)}"
        rows.append((f"  {layer.layer}: {shape}", "", size(layer.bytes_per_device), "estimated"))
    return Rows("Memory", ("", "whole", "a device", "source"), 3, tuple(rows))


def program(plan: Plan) -> Rows:
    """Returns what the step's program takes of a device; no rows where its compiler does not count it."""
    cost = plan.program
    rows = []
    if cost is not None:
        rows = [
            ("state, examples that it keeps and batches of a call", size(cost.argument_bytes)),
            ("results, besides what takes their place", size(cost.output_bytes - cost.reused_bytes)),
            ("temporaries", size(cost.temporary_bytes)),
            ("operations of a step", operations(cost.flops)),
            ("memory that a step reads and writes", size(round(cost.accessed_bytes))),
        ]
    return Rows("The step's program, counted by its compiler", ("", "a device"), 1, tuple(rows))


def traffic(plan: Plan) -> Rows:
    """Returns the collectives of one step by phase, kind and axis, and where several processes are, by link."""
    several = plan.processes > 1
    rows: list[tuple[str, ...]] = [
        (
            each.phase,
            each.kind,
            each.axis,
            *([NETWORK if each.crosses else INSIDE] if several else []),
            f"{each.count}",
            size(each.bytes),
            milliseconds(each.seconds),
        )
        for each in plan.traffic
    ]
    if rows:
        count, moved, seconds = traffic_sum(plan.traffic)
        rows.append(("all", "", "", *([""] if several else []), f"{count}", size(moved), milliseconds(seconds)))
    columns = ("phase", "kind", "axis", *(["link"] if several else []), "count", "bytes", "time")
    return Rows(
        "Collectives of one training step, counted in its program", columns, 3, tuple(rows), has_sum=bool(rows)
    )


def traffic_sum(groups: Sequence[Traffic]) -> tuple[int, int, float]:
    """Returns count, bytes and seconds of all groups."""
    return sum(g.count for g in groups), sum(g.bytes for g in groups), sum(g.seconds for g in groups)


def in_a_line(plan: Plan) -> str:
    """Returns the plan's verdict: what a device holds, whether that fits where it is known, and what a step moves."""
    held = {name: plan.totals[name].bytes_per_device for name in plan.totals}
    state = sum(count for name, count in held.items() if name != "activations")
    said = f"{size(state)} of state and {size(held.get('activations', 0))} of activations a device"
    if plan.rates.device == "cpu":
        own = mesh.size(dict(plan.axes)) // plan.processes
        whole = own * sum(held.values())
        memory = psutil.virtual_memory().total
        said += f", {'fits' if whole < memory else 'does not fit'}: {size(whole)} of this machine's {size(memory)}"
    _, moved, _ = traffic_sum(plan.traffic)
    return f"{said}; a step moves {size(moved)} a device" if moved else f"{said}; a step communicates nothing"


def notes(plan: Plan) -> list[str]:
    """Returns what the tables leave open: times and how they are reckoned, rules that passed a variable on."""
    at, (_, _, moving) = plan.rates, traffic_sum(plan.traffic)
    lines = [
        f"compute: {operations(plan.flops_per_device)} a device and step (estimated), "
        f"{milliseconds(plan.compute_seconds)} at {at.gflops:,.4g} GFLOP/s; "
        f"collectives: {milliseconds(moving)} at {at.bandwidth_gb_s:,.3g} GB/s"
        + (f", between processes {at.network_gb_s:,.3g} GB/s" if at.network_gb_s else ""),
        f"rates of one device: {at.note}; times leave out latency and overlap nothing",
    ]
    if plan.processes > 1:
        lines.append(_crossing(plan))
    if not plan.traffic:
        lines.append("a step communicates nothing")
    lines += [f"warning: {warning}" for warning in plan.warnings]
    return [*lines, *_passed(plan.variables)]


def _passed(variables_: Sequence[VariablePlan]) -> list[str]:
    """Returns what rules passed on or left whole, of equal blocks once."""
    return alike_once(f"{each.path}: {note}" for each in variables_ for note in each.passed)


def _crossing(plan: Plan) -> str:
    """Says which axes' devices lie in several processes."""
    inside = [axis for axis, count in plan.axes.items() if count > 1 and axis not in plan.crossing]
    own = mesh.size(dict(plan.axes)) // plan.processes
    kept = f"; {', '.join(inside)} {'lies' if len(inside) == 1 else 'lie'} inside one" if inside else ""
    crossing = f"{', '.join(plan.crossing)} {'crosses' if len(plan.crossing) == 1 else 'cross'} them"
    return f"{plan.processes} processes of {own} {'device' if own == 1 else 'devices'}: {crossing}{kept}"
