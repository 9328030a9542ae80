"""Report of a comparison: verdict, reasons and table."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from .differences import FACTOR, ULPS, Check
from .rounding import Rounding
from .verdict import Sensitivity, Verdict, percent, sensitivities, verdict_of

# Variables that a line lists by name: more make it too long to read, and verify.json has them all.
_MAX_NAMES = 3
COLUMNS = ("variable", "worst in", "entries", "differ by", "allowed", "ratio", "detects")
# Kind of check -> what a line says after its name. Kinds that are missing are compared after the last step.
_WHEN = {
    "initial": "",
    "gradient": ", step 1",
    "stepped": ", step 1",
    "point": ", at randomly perturbed weights",
    "evaluation": ", at randomly perturbed weights",
    "update": ", after one step from randomly perturbed weights",
    "padding": ", with other padding",
}


@dataclass(frozen=True)
class Report:
    """A comparison of at least one check, and its settings.

    Attributes:
      checks: at least one.
      steps: of training.
      mesh: axes in words, such as `batch=4 model=2`.
      terms: length of the longest sum.
      rounding: of the perturbed runs.
    """

    checks: tuple[Check, ...]
    steps: int
    mesh: str
    terms: int
    rounding: Rounding

    @property
    def remark(self) -> str:
        """What a reader should know of the comparison; empty: nothing."""
        return ""

    @property
    def subject(self) -> str:
        """What is compared with one device, in words."""
        return f"the mesh {self.mesh}"

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict: `verified`, `inconclusive` or `mismatch`."""
        return verdict_of(self.checks)

    @cached_property
    def variables(self) -> list[Sensitivity]:
        """What is detected of each trained variable."""
        return sensitivities(self.checks)

    @cached_property
    def failed(self) -> list[Check]:
        """The checks that did not pass, in the order of `checks`."""
        return [check for check in self.checks if not check.passed]

    @property
    def worst(self) -> Check:
        """The check with the largest ratio of difference to tolerance."""
        return max(self.checks, key=_severity)

    @property
    def first(self) -> Check | None:
        """The earliest failure in the order of computation; of several at once the worst. None: nothing failed."""
        return min(self.failed, key=lambda check: (check.step, -check.ratio, -check.relative), default=None)

    def line(self) -> str:
        """Returns the verdict with its reasons, in one line."""
        if self.verdict == "mismatch":
            return self._mismatch_line()
        detected = []
        zero = []
        insensitive = []
        for variable in self.variables:
            if variable.is_sensitive:
                detected.append(variable.resolution)
            if variable.zero:
                zero.append(variable.variable)
            if not variable.is_verified:
                insensitive.append(f"{variable.variable} ({variable.why})")
        parts = [f"{self.verdict}: {self.steps} steps on {self.mesh} match one device"]
        noun = "variables"
        if not self.steps:
            parts = [f"{self.verdict}: an evaluation on {self.mesh} matches one device"]
            noun = "outputs"
        if self.remark:
            parts.append(self.remark)
        count = f"{len(detected)} of {len(self.variables)} {noun} are sensitive"
        if detected:
            count += f" (detects errors of {percent(max(detected))} or more)"
        parts.append(count)
        if zero:
            parts.append(f"the gradients of {_shortened(zero)} are zero up to rounding")
        if insensitive:
            parts.append(f"not sensitive: {_shortened(insensitive)}")
        parts.append(f"worst: {self.worst.name} at {self.worst.ratio:.0%} of its tolerance")
        return "; ".join(parts)

    def _mismatch_line(self) -> str:
        assert self.first is not None
        worst = []
        for check in worst_of(attrgetter("kind"), self.failed):
            worst.append(f"{check.name} ({_ratio(check.ratio)} times its tolerance)")
        return (
            f"mismatch: {self.subject} differs from one device, first in {_place(self.first)}; "
            f"worst of each kind: {', '.join(worst)}; "
            f"{len(self.failed)} of {len(self.checks)} comparisons failed"
        )

    def basis(self) -> str:
        """Returns what is compared with what, and where the tolerances come from."""
        sums = ""
        half_ulp = ""
        if self.rounding.sums > self.rounding.noise:
            sums = f", where no matrix product adds up {self.rounding.sums:.1e}"
            half_ulp = " and half an ulp of the lower precision"
        storage = ""
        if self.rounding.storage:
            storage = f", and {self.rounding.storage:.1e} of each weight and slot that is stored in bfloat16"
        return (
            f"tolerance: {FACTOR:g} times the difference of one device from itself under a relative noise of "
            f"{self.rounding.noise:.1e}{sums}, which is 4 float32 ulps times the root of {self.terms:,}, the terms of "
            f"the longest sum{half_ulp}; and {ULPS:g} ulps of the largest entry{storage}"
        )

    def content(self) -> dict[str, object]:
        """Returns everything as plain values for JSON."""
        variables = [plain(variable) | {"sensitive": variable.is_sensitive} for variable in self.variables]
        checks = [plain(check) | {"passed": check.passed} for check in self.checks]
        return {
            "verdict": self.verdict,
            "verified": self.verdict == "verified",
            "line": self.line(),
            "first": self.first.name if self.first else None,
            "worst": self.worst.name,
            "steps": self.steps,
            "mesh": self.mesh,
            "noise": self.rounding.noise,
            "longest_sum": self.terms,
            "tolerance": self.basis(),
            "variables": variables,
            "checks": checks,
        }

    @cached_property
    def rows(self) -> list[Row]:
        """The table: the losses, and of each variable that moves the check with the largest ratio."""
        by_path = {variable.variable: variable for variable in self.variables}
        rows = []
        # Losses belong to no variable and come first. The sort is stable: the variables keep the model's order.
        worst = worst_of(attrgetter("variable"), self.checks)
        for check in sorted(worst, key=lambda check: check.variable != ""):
            if check.difference == check.tolerance == 0 and check.variable not in by_path:
                continue  # a count, or what nothing moves: bit for bit the same
            leaf = check.variable or "(loss)"
            detects = _detects(by_path.get(check.variable))
            rows.append(Row(leaf, _label(check), check.rank, check.difference, check.tolerance, check.ratio, detects))
        return rows


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
      leaf: path of the variable, or `(loss)`.
      worst_in: kind of its check with the largest ratio.
      entries: the share of its entries that differ by so much.
      detects: smallest relative error that its checks detect; empty for what is not trained.
    """

    leaf: str
    worst_in: str
    entries: str
    difference: float
    tolerance: float
    ratio: float
    detects: str

    @property
    def passed(self) -> bool:
        """Whether the difference is within its tolerance."""
        return self.ratio <= 1.0

    @property
    def cells(self) -> list[str]:
        """The row in words, below `COLUMNS`."""
        numbers = [f"{self.difference:.1e}", f"{self.tolerance:.1e}", _ratio(self.ratio)]
        return [self.leaf, self.worst_in, self.entries, *numbers, self.detects]


def _severity(check: Check) -> tuple[float, float]:
    return check.ratio, check.relative


def worst_of(group: Callable[[Check], str], checks: Sequence[Check]) -> list[Check]:
    """Returns the worst check of each group, in the order in which the groups appear."""
    worst: dict[str, Check] = {}
    for check in checks:
        other = worst.setdefault(group(check), check)
        worst[group(check)] = max(other, check, key=_severity)
    return list(worst.values())


def _place(check: Check) -> str:
    if check.kind == "loss":
        return f"the loss of step {int(check.step)}"
    when = _WHEN.get(check.kind, ", after the last step")
    return f"{check.name}{when} (off by {check.difference:.1e}, {_ratio(check.ratio)} times its tolerance)"


def _label(check: Check) -> str:
    """Returns the kind of an array in a row of its variable: `gradient`, `m` of a slot, `update m` of an update."""
    name = check.name
    if check.kind == "update":
        name = name.split("/", 2)[2]
    label = name.removesuffix(check.variable).removeprefix("optimizer").strip("/")
    if check.kind == "update":
        return f"update {label}".strip()
    if label in ("", "ema") or check.kind in ("point", "padding", "evaluation", "output"):
        return check.kind
    return label


def _ratio(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def _shortened(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    text = ", ".join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        text += f" and {len(names) - _MAX_NAMES} more"
    return text


def _detects(variable: Sensitivity | None) -> str:
    """Returns the smallest detected error of a variable; empty for the losses and what is not trained."""
    if variable is None:
        return ""
    if variable.zero:
        return "zero"
    if variable.is_sensitive:
        return percent(variable.resolution)
    return "not sensitive"


def plain(record: Check | Sensitivity) -> dict[str, object]:
    """Returns the fields of a record; JSON has no NaN or infinity, so these become strings."""
    fields = asdict(record)
    for key, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            fields[key] = str(value)
    return fields


@dataclass(frozen=True)
class StepReport(Report):
    """A comparison of a step with its reference; printed, its table.

    Attributes:
      inside: with `intermediates`, the first of them that differs in the first step that differs; else empty.
      unequal: leaves and outputs of which devices have different copies, though they are to be the same.
    """

    inside: str = ""
    unequal: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What is compared with one device, in words."""
        return "the step"

    def __str__(self) -> str:
        rows = [list(COLUMNS), *(row.cells for row in self.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
            cells += [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, self.line(), *self._notes(), self.basis()])

    def _notes(self) -> list[str]:
        notes = []
        if self.inside:
            notes.append(f"the first value inside the step that differs: {self.inside}")
        if self.unequal:
            notes.append(f"devices have different copies of: {', '.join(self.unequal)}")
        return notes

    def to_dict(self) -> dict[str, object]:
        """Returns everything as plain values, which JSON can write."""
        return self.content() | {"inside": self.inside or None, "unequal": list(self.unequal)}

    def to_html(self, path: str | Path) -> None:
        """Writes one file without scripts or links: the verdict, the table and where the tolerance comes from."""
        head = "".join(f"<th>{html.escape(title)}</th>" for title in COLUMNS)
        body = []
        for row in self.rows:
            marked = "" if row.passed else ' class="failed"'
            body.append(f"<tr{marked}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells) + "</tr>")
        notes = [f"<p>{html.escape(note)}</p>" for note in self._notes()]
        Path(path).write_text(
            _PAGE.format(
                verdict=self.verdict,
                line=html.escape(self.line()),
                notes="".join(notes),
                head=head,
                body="\n".join(body),
                basis=html.escape(self.basis()),
            ),
            "utf-8",
        )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>meshproof: {verdict}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem; max-width: 80rem }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ccc }}
td:nth-child(n+4), th:nth-child(n+4) {{ text-align: right }}
.failed {{ color: #b00020; font-weight: 600 }}
</style>
<h1>{verdict}</h1><p>{line}</p>{notes}
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table><p>{basis}</p></html>
"""
