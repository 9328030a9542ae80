"""What the measured runs add up to: rows, target ratios, a table and a JSON document."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import CONTENDERS
from benchmarks.data import TASKS

_PACKAGES = ("tensorflow", "tf-keras", "keras", "jax", "numpy")
Runs = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Target:
    """A ratio of medians that the runner must reach."""

    ours: str
    peer: str
    at_least: float


TARGETS = (
    Target("ours_batch8", "tutorial", 2.2),
    Target("ours_batch8", "mirrored_fit", 10.0),
    Target("ours_single", "tf_keras_fit", 1.5),
    Target("ours_jax_batch8", "jax_fit_dp", 1.3),
    Target("ours_jax_batch8", "guide_batch8", 1.0),
    Target("ours_jax_single", "jax_fit", 2.0),
    Target("ours_jax_single", "guide_single", 1.0),
    Target("ours_jax_convnet_batch8", "jax_fit_dp_convnet", 1.3),
    Target("ours_jax_convnet_batch8", "guide_convnet_batch8", 1.0),
    Target("ours_jax_convnet_single", "jax_fit_convnet", 1.5),
    Target("ours_jax_convnet_single", "guide_convnet_single", 1.0),
)


@dataclass(frozen=True)
class Row:
    """One contender's figures over all repeats; null where no repeat gave any."""

    name: str
    label: str
    model: str
    mesh: str
    runs: int
    steps_per_second: float | None
    slowest: float | None
    fastest: float | None
    epoch_steps_per_second: float | None
    ratio_to_ours: float | None
    cpu_ms_per_step: float | None
    final_loss: float | None
    error: str | None


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured; `paired` are the ratios within each repeat."""

    target: Target
    ratio: float | None
    paired: tuple[float, ...]

    @property
    def met(self) -> bool:
        """Whether the ratio of medians reaches the target."""
        return self.ratio is not None and self.ratio >= self.target.at_least


def _median(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def _good(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for run in runs if "error" not in run]


def rows(runs: Runs) -> list[Row]:
    """Sums up every contender that was asked for, in the registry's order."""
    rate = {name: _median(_good(entries), "steps_per_second") for name, entries in runs.items()}
    result = []
    for name in (name for name in CONTENDERS if name in runs):
        contender = CONTENDERS[name]
        good = _good(runs[name])
        rates = [run["steps_per_second"] for run in good]
        ours = rate.get(contender.rival)
        own = rate[name]
        result.append(
            Row(
                name=name,
                label=contender.label,
                model=contender.model,
                mesh=contender.mesh,
                runs=len(good),
                steps_per_second=own,
                slowest=min(rates, default=None),
                fastest=max(rates, default=None),
                epoch_steps_per_second=_median(good, "epoch_steps_per_second"),
                ratio_to_ours=own / ours if own and ours else None,
                cpu_ms_per_step=_median(good, "cpu_ms_per_step"),
                final_loss=_median(good, "final_loss"),
                error=next((run["error"] for run in reversed(runs[name]) if "error" in run), None),
            )
        )
    return result


def verdicts(runs: Runs) -> list[Verdict]:
    """Compares the measured ratios with the targets of the models that were asked for."""
    models = {CONTENDERS[name].model for name in runs}
    result = []
    for target in (target for target in TARGETS if CONTENDERS[target.ours].model in models):
        ours, peer = (
            {run["repeat"]: run["steps_per_second"] for run in _good(runs.get(name, []))}
            for name in (target.ours, target.peer)
        )
        ratio = statistics.median(ours.values()) / statistics.median(peer.values()) if ours and peer else None
        result.append(Verdict(target, ratio, tuple(ours[r] / peer[r] for r in sorted(ours.keys() & peer.keys()))))
    return result


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def print_report(runs: Runs, console: Console) -> None:
    """Prints a table a model, the target ratios, and the last error of each contender that had one."""
    measured = rows(runs)
    for model, task in TASKS.items():
        of_model = [row for row in measured if row.model == model]
        if of_model:
            console.print(_table(task.title, of_model))
    for verdict in verdicts(runs):
        console.print(_sentence(verdict), highlight=False, soft_wrap=True)
    for row in measured:
        if row.error:
            last = row.error.splitlines()[-1].strip()
            shown = row.error if len(row.error.splitlines()) == 1 else f"{row.error.split(':')[0]}: ... {last}"
            console.print(f"{row.name}: {shown}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _table(title: str, measured: list[Row]) -> Table:
    table = Table(title=title, caption=_CAPTION, caption_justify="left")
    table.add_column("contender")
    table.add_column("mesh")
    for heading in ("runs", "steps/s", "min-max", "/ ours", "steps/s, epoch", "CPU ms/step", "loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, row in enumerate(measured):
        after = measured[place + 1] if place + 1 < len(measured) else row
        table.add_row(
            row.label,
            row.mesh,
            str(row.runs),
            _number(row.steps_per_second),
            "failed" if row.slowest is None else f"{_number(row.slowest)}-{_number(row.fastest)}",
            _number(row.ratio_to_ours, 3),
            _number(row.epoch_steps_per_second),
            _number(row.cpu_ms_per_step, 2),
            _number(row.final_loss, 4),
            end_section=CONTENDERS[after.name].rival != CONTENDERS[row.name].rival,
        )
    return table


_CAPTION = (
    "Medians. steps/s: steady, without compiling, the start of an epoch and evaluation; epoch: a whole epoch with its "
    "start. / ours: of the runner on that engine and mesh. loss: of the trained weights on the first 2,048 training "
    "examples, after each one's own number of steps; ours: the training loss that the runner reports."
)


def _sentence(verdict: Verdict) -> str:
    target = verdict.target
    what = f"{target.ours} / {target.peer}: at least {target.at_least:g}"
    if verdict.ratio is None:
        return f"{what}, not measured"
    spread = f" ({min(verdict.paired):.2f}-{max(verdict.paired):.2f} by repeat)" if verdict.paired else ""
    return f"{what}, measured {verdict.ratio:.2f}{spread}: {'pass' if verdict.met else 'FAIL'}"


def document(runs: Runs, settings: dict[str, Any]) -> dict[str, Any]:
    """Builds the JSON document: every raw figure, and what the table makes of them."""
    return {
        "settings": settings,
        "machine": machine(),
        "table": [asdict(row) for row in rows(runs)],
        "targets": [
            {**asdict(v.target), "ratio": v.ratio, "ratio_by_repeat": list(v.paired), "met": v.met}
            for v in verdicts(runs)
        ],
        "runs": runs,
    }


def machine() -> dict[str, Any]:
    """Names the machine and the installed versions."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }
