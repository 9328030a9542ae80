"""What a verification found: verdict, table, verify.json and verify.md."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from runner.plan.table import break_path
from runner.verify.compare import FACTOR, PERTURBED_RUNS, ULPS, Check, noise_of_sums
from runner.verify.parity import Parity

_PACKAGES = ("tensorflow", "tf-keras", "jax", "keras", "numpy", "runner")
_KINDS = ("initial", "loss", "gradient", "parameter", "average", "statistic", "slot")
_BLUNT_NAMED = 3
_LONGEST = 34  # columns of a path on the terminal


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
      precision: `engine.precision`.
    """

    checks: tuple[Check, ...]
    steps: int
    mesh: str
    terms: int
    noise: float
    parity: Parity | None = None
    precision: str = "float32"

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def worst(self) -> Check:
        """The check that comes nearest to its tolerance, or exceeds it most."""
        return max(self.checks, key=_severity)

    @property
    def first(self) -> Check:
        """The earliest failure in the order of computation; of several at once the worst."""
        failed = [check for check in self.checks if not check.passed]
        return min(failed, key=lambda check: (check.step, *(-part for part in _severity(check))))

    def verdict(self) -> str:
        """Says in one line what came out."""
        if self.passed:
            line = (
                f"verified: {self.steps} steps {self._equal()}; {self.worst.name} comes nearest, at "
                f"{self.worst.ratio:.0%} of its tolerance"
            )
            blunt = [check.name for check in self.checks if check.blunt]
            more = f" and {len(blunt) - _BLUNT_NAMED} more" if len(blunt) > _BLUNT_NAMED else ""
            few = ", ".join(blunt[:_BLUNT_NAMED]) + more
            return line + (f"; rounding alone moves {few} too much for a sharp comparison" if blunt else "")
        failed = [check for check in self.checks if not check.passed]
        kinds = {kind: [check for check in failed if check.kind == kind] for kind in _KINDS}
        worst = [max(checks, key=_severity) for checks in kinds.values() if checks]
        return (
            f"FAILED: {self._differs()}, first in {_where(self.first)}; worst of a kind "
            f"{', '.join(f'{check.name} ({_times(check.ratio)} its tolerance)' for check in worst)}; "
            f"{len(failed)} of {len(self.checks)} comparisons failed"
        )

    def _equal(self) -> str:
        if self.parity is None:
            return f"on {self.mesh} equal one device"
        return f"of {self.parity.second} on {self.mesh} equal those of {self.parity.first}"

    def _differs(self) -> str:
        if self.parity is None:
            return f"the mesh {self.mesh} differs from one device"
        return f"{self.parity.second} differs from {self.parity.first} on {self.mesh}"

    def basis(self) -> str:
        """Says what is compared with what, and where the tolerances come from."""
        single = f"one device of {self.parity.first}" if self.parity else "one device"
        initial = "not compared" if self.parity else "equal exactly"
        lower = self.precision != "float32"
        half = f" and half a {self.precision} ulp" if lower else ""
        sums = f", where no matrix product adds up {noise_of_sums(self.terms, self.precision):.1e}" if lower else ""
        return (f"{self.parity.basis()}; " if self.parity else "") + (
            f"tolerance: {FACTOR:g} times what {single} differs by from itself under a relative noise of "
            f"{self.noise:.1e}{sums} ({PERTURBED_RUNS} runs), and {ULPS:g} ulps of the largest entry; the noise is 4 "
            f"float32 ulps times the root of {self.terms:,}, the terms of the longest sum{half}; a batch statistic "
            f"has that noise besides; initial weights are {initial}"
        )

    def metrics(self) -> dict[str, float]:
        """Returns figures for the tracker."""
        kinds = {kind: [check.ratio for check in self.checks if check.kind == kind] for kind in _KINDS}
        return {"verify/worst_ratio": self.worst.ratio} | {
            f"verify/{kind}_ratio": max(ratios) for kind, ratios in kinds.items() if ratios
        }

    def content(self, config: Mapping[str, object]) -> dict[str, object]:
        """Returns everything as plain values for JSON.

        Args:
          config: the resolved config, whose hash is kept.
        """
        return {
            "verified": self.passed,
            "verdict": self.verdict(),
            "first": None if self.passed else self.first.name,
            "worst": self.worst.name,
            "steps": self.steps,
            "mesh": self.mesh,
            "engines": None if self.parity is None else [self.parity.first, self.parity.second],
            "noise": self.noise,
            "longest_sum": self.terms,
            "tolerance": self.basis(),
            "config_sha256": config_hash(config),
            "versions": _versions(),
            "checks": [
                _plain(check) | {"passed": check.passed, "origin": self.origin(check)} for check in self.checks
            ],
        }

    def origin(self, check: Check) -> str:
        """Says where one check's tolerance comes from."""
        if check.kind == "initial":
            return "drawn from the seed, whole: equal"
        return (
            f"float32, sums of up to {self.terms:,} terms, {_span(check)}; one device differs from itself by "
            f"{check.spread:.1e}"
        )

    def table(self) -> Table:
        """Returns the terminal's table: the losses, and of each variable the check nearest to its tolerance."""
        table = Table(
            title=f"{self._title()}, {self.steps} steps",
            title_justify="left",
            box=SIMPLE,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("variable", no_wrap=True)
        for column in ("worst in", "abs", "rel", "entries", "differ by", "allowed", "ratio"):
            table.add_column(column, justify="left" if column in ("worst in", "entries") else "right", no_wrap=True)
        for check in self._worst_by_variable():
            style = "" if check.passed else "bold red"
            table.add_row(break_path(check.variable or "(loss)", _LONGEST), *_cells(check), style=style)
        return table

    def _title(self) -> str:
        if self.parity is None:
            return f"{self.mesh} beside one device"
        return f"{self.parity.second} beside {self.parity.first} on {self.mesh}"

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


def _where(check: Check) -> str:
    if check.kind == "loss":
        return f"the loss of step {int(check.step)}"
    when = {"initial": "", "gradient": ", step 1"}.get(check.kind, ", after the last step")
    return f"{check.name}{when} (worst {check.absolute:.1e}, {_times(check.ratio)} its tolerance)"


def _span(check: Check) -> str:
    if check.kind == "loss":
        return "steps up to then"
    return "one step" if check.kind == "gradient" else "all steps"


def _times(ratio: float) -> str:
    return f"{_ratio(ratio)} times"


def _cells(check: Check) -> list[str]:
    kind = check.name.removesuffix(check.variable).removeprefix("optimizer").strip("/")
    kind = check.kind if kind in ("", "ema") else kind
    figures = [f"{value:.1e}" for value in (check.absolute, check.relative, check.difference, check.tolerance)]
    return [kind, *figures[:2], check.rank, *figures[2:], _ratio(check.ratio)]


def _ratio(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(check: Check) -> dict[str, object]:
    """Returns the fields; JSON has no infinity, so that becomes a word."""
    fields = asdict(check)
    return {key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in fields.items()}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "not installed"
    return found
