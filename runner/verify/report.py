"""Report of a verification: the terminal's table, figures for the tracker and verify.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Group

from runner.config.schema import VerifyConfig
from runner.console import Column, fitted
from runner.verify.meshproof.differences import Check
from runner.verify.meshproof.report import COLUMNS, Report, worst_of
from runner.verify.meshproof.rounding import Rounding

_RIGHT = ("differ by", "allowed", "ratio", "detects")
# Columns that a narrow terminal leaves out, the last one first.
_DROP = {"differ by": 1, "entries": 2}


@dataclass(frozen=True)
class Verification(Report):
    """A comparison of a run on its mesh with one device; its warnings are about what both sides share."""

    devices: int
    warnings: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """What a reader should know of the comparison; empty: nothing."""
        if self.devices > 1:
            return ""
        return "this compares one device with itself, so no sharding is verified: set mesh=batch8 or another"

    def line(self) -> str:
        """Returns the verdict with its reasons, and what accepts it, in one line."""
        line = super().line()
        if self.verdict == "inconclusive":
            line += "; to accept this, set verify.allow_inconclusive=true"
        return line

    def basis(self) -> str:
        """Returns what is compared with what, and where the tolerances come from."""
        evaluation = ""
        if "evaluation" not in map(attrgetter("kind"), self.checks):
            evaluation = (
                "; no evaluation is compared, as its loss has random numbers of the model's own, or is NaN or Inf"
            )
        return f'{super().basis()}{evaluation}; see "How verify works" in the docs'

    def figures(self) -> dict[str, float]:
        """Returns figures for the tracker."""
        figures = {"verify/worst_ratio": self.worst.ratio}
        if self.variables:
            verified = sum(map(attrgetter("is_verified"), self.variables))
            figures["verify/verified_share"] = verified / len(self.variables)
        for check in worst_of(attrgetter("kind"), self.checks):
            figures[f"verify/{check.kind}_ratio"] = check.ratio
        return figures

    def table(self, width: int) -> Group:
        """Returns the terminal's table."""
        columns = [Column(title, right=title in _RIGHT, drop=_DROP.get(title, 0)) for title in COLUMNS]
        cells = []
        styles = []
        for row in self.rows:
            cells.append(row.cells)
            styles.append("" if row.passed else "bold red")
        what = f"{self.steps} steps" if self.steps else "an evaluation"
        title = f"{self.mesh} compared with one device, {what}"
        return fitted(columns, cells, width, title=title, styles=styles)

    def write(self, folder: Path, versions: Mapping[str, str], name: str = "verify.json") -> Path:
        """Writes a JSON file with the versions of the packages that computed, and returns its path."""
        path = folder / name
        content = {**self.content(), "warnings": self.warnings, "versions": dict(versions)}
        path.write_text(json.dumps(content, indent=2) + "\n")
        return path


def from_fields(fields: Mapping[str, Any]) -> Verification:
    """Returns a verification from its fields, as another process wrote them."""
    checks = tuple(Check(**check) for check in fields["checks"])
    rounding = Rounding(**fields["rounding"])
    return Verification(**{**fields, "checks": checks, "rounding": rounding, "warnings": tuple(fields["warnings"])})


def failure_of(options: VerifyConfig, report: Verification | None) -> str:
    """Returns why a verdict, or none in a process that has none, is a failure; empty: it is none."""
    if report is None or report.verdict == "verified":
        return ""
    if report.verdict == "inconclusive" and options.allow_inconclusive:
        return ""
    return report.line()
