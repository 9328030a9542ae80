"""What a verification found: verdict, table, verify.json and verify.md."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Group

from runner.engine import registry
from runner.plan.table import WIDTH
from runner.report.tables import Column, fitted
from runner.verify import points
from runner.verify.compare import FACTOR, MORE_RUNS, PERTURBED_RUNS, ULPS, Check
from runner.verify.parity import Parity
from runner.verify.rounding import noise_of_sums
from runner.verify.verdict import Outcome, Sharpness, outcome_of, percent, sharpness

_PACKAGES = (*registry.distributions(), "numpy", "runner")
_KINDS = ["initial", "loss", "gradient", "point", "evaluation", "update"]
_KINDS += ["parameter", "average", "statistic", "slot", "padding"]
_NAMED = 3  # variables that a line names
_COLUMNS = (
    Column("variable"),
    Column("worst in"),
    Column("abs", right=True, drop=2),
    Column("rel", right=True, drop=3),
    Column("entries", drop=4),
    Column("differ by", right=True),
    Column("allowed", right=True),
    Column("ratio", right=True),
    Column("sharp to", right=True),
)
_WHEN = {
    "initial": "",
    "gradient": ", step 1",
    "point": ", at a generic point",
    "evaluation": ", at a generic point",
    "update": ", after one step from a generic point",
    "padding": ", with other padding",
}


@dataclass(frozen=True)
class Verification:
    """A comparison and what it was made of.

    Attributes:
      checks: at least one.
      steps: of training.
      mesh: axes in words, as `batch=4 model=2`.
      terms: length of the longest sum.
      noise: relative, of the perturbed runs.
      parity: the two engines that are compared; null: the mesh and one device.
      precision: the lowest that one device computes in.
      stored: what both sides' rounding of a kept weight or slot may differ by, see `runner.verify.rounding.stored`.
      asked: `verify.steps`, where `verify.seconds` left some of them out.
    """

    checks: tuple[Check, ...]
    steps: int
    mesh: str
    terms: int
    noise: float
    parity: Parity | None = None
    precision: str = "float32"
    stored: float = 0.0
    asked: int | None = None

    @cached_property
    def outcome(self) -> Outcome:
        """The verdict in a word."""
        return outcome_of(self.checks)

    @cached_property
    def variables(self) -> list[Sharpness]:
        """What is verified of each trained variable."""
        return sharpness(self.checks)

    @cached_property
    def failed(self) -> list[Check]:
        """The checks that did not pass, in the order of `checks`."""
        return [check for check in self.checks if not check.passed]

    @property
    def named(self) -> tuple[str, ...]:
        """The variables that differ, the worst first; where none does, those that are neither sharp nor zero."""
        failed = sorted(self.failed, key=_severity, reverse=True)
        blunt = sorted((each for each in self.variables if not each.verified), key=lambda each: -each.resolution)
        return tuple(dict.fromkeys(check.variable or check.name for check in failed)) or tuple(
            each.variable for each in blunt
        )

    @property
    def worst(self) -> Check:
        """The check that comes nearest to its tolerance, or exceeds it most."""
        return max(self.checks, key=_severity)

    @property
    def first(self) -> Check:
        """The earliest failure in the order of computation; of several at once the worst."""
        return min(self.failed, key=lambda check: (check.step, *(-part for part in _severity(check))))

    def verdict(self) -> str:
        """Says in one line what came out."""
        if self.outcome != "mismatch":
            known = self.variables
            sharp = [each for each in known if each.sharp]
            zero = [each for each in known if each.zero]
            parts = [
                f"{self.outcome}: {self._steps()} steps {self._equal()}",
                f"{len(sharp)} of {len(known)} variables are sharp{_bluntest(sharp)}",
                f"the gradients of {_few([each.variable for each in zero])} are nothing but rounding" if zero else "",
                _unproven(known),
                f"{self.worst.name} comes nearest, at {self.worst.ratio:.0%} of its tolerance",
                "verify.allow_inconclusive=true accepts that" if self.outcome == "inconclusive" else "",
            ]
            return "; ".join(part for part in parts if part)
        worst = _worst_of_kinds(self.failed)
        return (
            f"mismatch: {self._differs()}, first in {_where(self.first)}; worst of a kind "
            f"{', '.join(f'{check.name} ({_times(check.ratio)} its tolerance)' for check in worst)}; "
            f"{len(self.failed)} of {len(self.checks)} comparisons failed"
        )

    def _steps(self) -> str:
        return f"{self.steps}" if self.asked in (None, self.steps) else f"{self.steps} of {self.asked}"

    def _equal(self) -> str:
        if self.parity is None:
            return f"on {self.mesh} equal one device"
        return f"of {self.parity.names[1]} on {self.mesh} equal those of {self.parity.names[0]}"

    def _differs(self) -> str:
        if self.parity is None:
            return f"the mesh {self.mesh} differs from one device"
        return f"{self.parity.names[1]} differs from {self.parity.names[0]} on {self.mesh}"

    def basis(self) -> str:
        """Says what is compared with what, and where the tolerances come from."""
        single = f"one device of {self.parity.names[0]}" if self.parity else "one device"
        initial = "not compared" if self.parity else "equal exactly"
        lower = self.precision != "float32"
        half = f" and half a {self.precision} ulp" if lower else ""
        kept = f", and {self.stored:.1e} of each weight and slot that is kept in bfloat16" if self.stored else ""
        sums = f", where no matrix product adds up {noise_of_sums(self.terms, self.precision):.1e}" if lower else ""
        return (f"{self.parity.basis()}; " if self.parity else "") + (
            f"tolerance: {FACTOR:g} times what {single} differs by from itself under a relative noise of "
            f"{self.noise:.1e}{sums} ({PERTURBED_RUNS} runs, {MORE_RUNS} more where the training from the start alone "
            f"differs), and {ULPS:g} ulps of the largest entry{kept}; the noise is 4 float32 ulps times the root of "
            f"{self.terms:,}, the terms of the longest sum{half}; a batch statistic has that noise besides; initial "
            f"weights are {initial}; point: gradients at {points.COUNT} states with "
            "every parameter moved at random; evaluation: an evaluation there, whose last batch is padded if the mesh "
            "splits batches; update: one step from there"
        )

    def metrics(self) -> dict[str, float]:
        """Returns figures for the tracker."""
        known = self.variables
        verified = {"verify/verified_share": sum(each.verified for each in known) / len(known)} if known else {}
        worst = {f"verify/{check.kind}_ratio": check.ratio for check in _worst_of_kinds(self.checks)}
        return {"verify/worst_ratio": self.worst.ratio} | verified | worst

    def content(self, config: Mapping[str, object]) -> dict[str, object]:
        """Returns everything as plain values for JSON.

        Args:
          config: the resolved config, whose hash is kept.
        """
        return {
            "verdict": self.outcome,
            "verified": self.outcome == "verified",
            "line": self.verdict(),
            "first": self.first.name if self.outcome == "mismatch" else None,
            "worst": self.worst.name,
            "steps": self.steps,
            "mesh": self.mesh,
            "engines": None if self.parity is None else [self.parity.names[0], self.parity.names[1]],
            "noise": self.noise,
            "longest_sum": self.terms,
            "tolerance": self.basis(),
            "config_sha256": config_hash(config),
            "versions": _versions(),
            "variables": [_plain(each) | {"sharp": each.sharp} for each in self.variables],
            "checks": [
                _plain(check) | {"passed": check.passed, "origin": self.origin(check)} for check in self.checks
            ],
        }

    def origin(self, check: Check) -> str:
        """Says where one check's tolerance comes from."""
        if check.kind == "initial":
            return "drawn from the seed, whole: equal"
        if check.kind == "padding":
            return "the same program, with other padding: equal"
        return (
            f"float32, sums of up to {self.terms:,} terms, {_span(check)}; one device differs from itself by "
            f"{check.spread:.1e}"
        )

    def table(self, width: int = WIDTH) -> Group:
        """Returns the terminal's table: the losses, and of each variable the check nearest to its tolerance.

        Args:
          width: of the terminal.
        """
        known = {each.variable: each for each in self.variables}
        worst = list(self._worst_by_variable())
        return fitted(
            _COLUMNS,
            [(check.variable or "(loss)", *_cells(check), _sharp_to(known.get(check.variable))) for check in worst],
            width,
            title=f"{self._title()}, {self._steps()} steps",
            styles=["" if check.passed else "bold red" for check in worst],
        )

    def _title(self) -> str:
        if self.parity is None:
            return f"{self.mesh} beside one device"
        return f"{self.parity.names[1]} beside {self.parity.names[0]} on {self.mesh}"

    def _worst_by_variable(self) -> Iterable[Check]:
        groups: dict[str, list[Check]] = {}
        for check in self.checks:
            groups.setdefault(check.variable, []).append(check)
        return (max(group, key=_severity) for _, group in sorted(groups.items(), key=lambda item: item[0] != ""))

    def markdown(self) -> str:
        """Returns every check as a Markdown table, the verdict before it."""
        head = ("compared", "worst abs", "worst rel", "entries", "differ by", "allowed", "ratio", "where from")
        lines = [self.verdict(), "", self.basis(), "", _row(head), _row(["---"] * len(head))]
        lines += [_row([check.name, *_cells(check)[1:], self.origin(check)]) for check in self.checks]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, config: Mapping[str, object]) -> list[Path]:
        """Writes verify.json and verify.md and returns their paths."""
        files = {"verify.json": json.dumps(self.content(config), indent=2) + "\n", "verify.md": self.markdown()}
        for name, text in files.items():
            (folder / name).write_text(text)
        return [folder / name for name in files]


def config_hash(config: Mapping[str, object]) -> str:
    """Returns the sha256 of a resolved config, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()


def _severity(check: Check) -> tuple[float, float]:
    return check.ratio, check.relative


def _worst_of_kinds(checks: Sequence[Check]) -> list[Check]:
    groups = ([check for check in checks if check.kind == kind] for kind in _KINDS)
    return [max(group, key=_severity) for group in groups if group]


def _where(check: Check) -> str:
    if check.kind == "loss":
        return f"the loss of step {int(check.step)}"
    when = _WHEN.get(check.kind, ", after the last step")
    return f"{check.name}{when} (worst {check.absolute:.1e}, {_times(check.ratio)} its tolerance)"


def _span(check: Check) -> str:
    if check.kind == "loss":
        return "steps up to then"
    if check.kind == "evaluation":
        return "one evaluation"
    return "one step" if check.kind in ("gradient", "point", "update") else "all steps"


def _times(ratio: float) -> str:
    return f"{_ratio(ratio)} times"


def _cells(check: Check) -> list[str]:
    name = points.parsed(check.name)[2] if check.kind == "update" else check.name
    kind = name.removesuffix(check.variable).removeprefix("optimizer").strip("/")
    kind = f"update {kind}".strip() if check.kind == "update" else kind
    kind = check.kind if kind in ("", "ema") or check.kind in ("point", "padding", "evaluation") else kind
    figures = [f"{value:.1e}" for value in (check.absolute, check.relative, check.difference, check.tolerance)]
    return [kind, *figures[:2], check.rank, *figures[2:], _ratio(check.ratio)]


def _ratio(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bluntest(sharp: Sequence[Sharpness]) -> str:
    """Says which error of each would have been seen."""
    if not sharp:
        return ""
    bluntest = max(sharp, key=lambda each: each.resolution)
    return f" (an error of {percent(bluntest.resolution)} would be seen in each)"


def _unproven(known: Sequence[Sharpness]) -> str:
    """Says which variables are neither sharp nor zero, and why."""
    blunt = [f"{each.variable} ({each.why})" for each in known if not each.verified]
    return f"not sharp: {_few(blunt)}" if blunt else ""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _sharp_to(known: Sharpness | None) -> str:
    if known is None:
        return ""
    return "zero" if known.zero else percent(known.resolution) if known.sharp else "not sharp"


def _plain(fact: Check | Sharpness) -> dict[str, object]:
    """Returns the fields; JSON has no infinity, so that becomes a word."""
    fields = asdict(fact)
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in fields.items()}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "not installed"
    return found
