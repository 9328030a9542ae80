"""Report of a recomputed step: printed, and written to step.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.verify.recompute import Recomputed
from runner.verify.recorded_step import RecordedStep
from runner.verify.step_comparison import Comparison, Difference

FILE = "step.json"

# Examples and variables that are printed; the file has all.
_SHOWN = 10

# Key -> the recorded value and the present one.
Differences = Mapping[str, tuple[object, object]]


def lines(recorded: RecordedStep, result: Recomputed, comparison: Comparison, differences: Differences) -> list[str]:
    """Returns the lines that are printed.

    Args:
      recorded: the step.
      result: what was computed again.
      comparison: of the two.
      differences: keys and libraries that are not the recorded ones.
    """
    step = recorded.step
    start = "the beginning" if recorded.start is None else f"the checkpoint of step {recorded.first:,}"
    printed = [f"computed step {step:,} of run {recorded.run.id} again, from {start}"]
    for key, (before, now) in differences.items():
        printed.append(f"other than in the run: {key}={shown(now)}, which was {shown(before)} in this step")
    means = "  ".join(f"{name} {value:.6g}" for name, value in result.metrics[step].items())
    printed.append(f"step {step:,}: {means}")
    examples = ", ".join(map(str, result.examples[:_SHOWN]))
    if len(result.examples) > _SHOWN:
        examples += f", ... ({len(result.examples)} in all, in {FILE})"
    printed.append(f"examples of its batch, as indices in the training split: {examples}")
    printed += _compared(recorded, comparison)
    return printed


def _compared(recorded: RecordedStep, comparison: Comparison) -> list[str]:
    compared: list[str] = []
    if comparison.points:
        compared.append(f"{comparison.points} recorded metrics")
    if comparison.variables:
        compared.append(f"all {comparison.variables} variables of the checkpoint of step {recorded.step:,}")
    if not compared:
        return [
            f"nothing to compare with: the run's checkpoints have no metrics of steps {recorded.first + 1:,} to "
            f"{recorded.step:,}"
        ]
    if comparison.is_equal:
        return [f"bitwise identical: {' and '.join(compared)}"]
    printed = [f"compared: {' and '.join(compared)}"]
    printed += _table("metric", comparison.metric_differences)
    printed += _table("variable", comparison.variable_differences)
    return printed


def _table(what: str, differences: Sequence[Difference]) -> list[str]:
    printed: list[str] = []
    for difference in differences[:_SHOWN]:
        printed.append(
            f"{what} {difference.name} differs at step {difference.step:,} by {difference.largest:.3g} "
            f"({difference.relative:.2g} of its largest value)"
        )
    if len(differences) > _SHOWN:
        printed.append(f"{len(differences) - _SHOWN} more {what}s differ, see {FILE}")
    return printed


def shown(value: object) -> object:
    """Returns a value of a config as it is typed."""
    return "null" if value is None else value


def write(
    folder: Path, recorded: RecordedStep, result: Recomputed, comparison: Comparison, differences: Differences
) -> Path:
    """Writes step.json and returns its path."""
    content = {
        "run": recorded.run.id,
        "step": recorded.step,
        "start": recorded.first,
        "equal": comparison.is_equal,
        "differences": {key: list(map(str, values)) for key, values in differences.items()},
        "metrics": {str(step): means for step, means in sorted(result.metrics.items())},
        "examples": result.examples,
        "compared_metrics": comparison.points,
        "compared_variables": comparison.variables,
        "metric_differences": [asdict(difference) for difference in comparison.metric_differences],
        "variable_differences": [asdict(difference) for difference in comparison.variable_differences],
        "states": [asdict(record) for record in result.records],
    }
    path = folder / FILE
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
