"""Report of a finished run: files, the logged model and the table that is printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from runner import figures
from runner.cluster.team import current
from runner.config.schema import RunConfig
from runner.data.base import Array, Encoding
from runner.engine.common import Engine
from runner.engine.lengths import RunLength
from runner.host.late import late
from runner.host.outputs import quiet_native_log, spared
from runner.task.base import DataSpec, Evaluation, Report
from runner.task.metrics import prefixed
from runner.tracking import Tracker
from runner.tracking.location import MLFLOW
from runner.train import loop
from runner.train.display import result_table, shown
from runner.train.export.signature import Served
from runner.train.feed import Splits

if TYPE_CHECKING:
    from runner.tracking.store import Store
    from runner.train.export import log
else:
    # Imports the slow parts of MLflow, which only the end of a tracked run needs.
    log = late("runner.train.export.log")

# Rows from which the logged model gets its input example.
_EXAMPLE_ROWS = 2
Writer = Callable[[Path], object]
# (step, values by name)
Points = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Outcome:
    """A finished run, as its report reads it.

    Attributes:
      engine: with the weights that the run keeps.
      length: of the run by its config; with early stopping it may have ended before.
      plan: the figures of its plan by name, such as `plan/bytes_per_device`.
      mfu: model FLOPs utilization (MFU) of training, a fraction; None: it is not known.
    """

    config: RunConfig
    engine: Engine
    splits: Splits
    result: loop.Result
    length: RunLength
    plan: Mapping[str, float]
    mfu: float | None
    encoding: Encoding

    @property
    def served(self) -> Served:
        """The signature of the run's model."""
        task = self.splits.reported.task
        return Served(DataSpec(task.arrays, task), self.encoding)

    def examples(self) -> dict[str, Array]:
        """Returns the first examples (n, ...) of the reported split by array, not standardized."""
        source = self.splits.reported.source
        return self.served.raw(source.read(np.arange(min(_EXAMPLE_ROWS, source.size))))

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Evaluations of the weights that the run keeps, by split."""
        evaluations = {self.splits.selecting_name: self.result.evaluation}
        if self.result.test is not None:
            evaluations["test"] = self.result.test
        return evaluations


def record_result(outcome: Outcome, tracker: Tracker, folder: Path) -> None:
    """Writes and records the report's files, and logs the model; a file that can't be written is a warning.

    Process 0 writes; the others take part in gathering the model.
    """
    if current().is_first:
        for name, write in _files(outcome).items():
            with spared(str(folder / name)):
                write(folder / name)
                tracker.log_artifact(folder / name)
    config = outcome.config
    if config.trainer.log_model and MLFLOW in config.tracking.writers:
        _log_model(outcome, tracker, folder)


def _log_model(outcome: Outcome, tracker: Tracker, folder: Path) -> None:
    """Logs the trained model to the tracking store, as an export of the run does."""
    config = outcome.config
    engine = outcome.engine
    quiet = partial(quiet_native_log, folder / "runner.log")
    with engine.saving():
        # All processes take part in gathering the weights.
        with quiet():
            plain = engine.plain_model()

        def save(store: Store, run_id: str) -> str:
            # Only around this: the tracker's warning must reach the user.
            with quiet():
                return log.log_model(
                    store,
                    run_id,
                    plain,
                    outcome.served,
                    outcome.examples(),
                    name="model",
                    step=outcome.result.steps,
                    convert=not config.model.target.startswith("runner."),
                )

        tracker.log_model(save)


def _files(outcome: Outcome) -> dict[str, Writer]:
    """Returns, by file name, the function that writes each file."""
    result = outcome.result
    splits = outcome.splits
    task = splits.train.task
    length = outcome.length
    history = result.history
    report = Report({}, {})
    with spared("the task's pictures"):
        report = task.report(result.reported, splits.reported.source, splits.reported_name)
    summary = json.dumps(_summary(outcome), indent=2) + "\n"
    files: dict[str, Writer] = {}
    # A single point is no curve.
    if max(len(history.train), len(history.evaluations)) > 1:
        evaluations = [(step, evaluation.metrics) for step, evaluation in history.evaluations]
        panels = curves(history.train, history.epochs, evaluations, length, splits.selecting_name)
        along = f"epoch (of {length.epoch:,} steps)" if length.by_epochs else "step"
        files["curves.png"] = lambda path: figures.curves(path, panels, along)
    files |= report.files
    files["summary.json"] = lambda path: path.write_text(summary)
    return files


def curves(
    train: Points, epochs: Points, evaluations: Points, length: RunLength, evaluated: str = "test"
) -> dict[str, list[figures.Curve]]:
    """Returns the curves of every metric by epoch or by step, for training steps and for evaluations of a split."""
    unit = length.epoch if length.by_epochs else 1
    period = "epoch" if length.by_epochs else "period"
    drawn = (
        (train, "train, a few steps", figures.TRAIN_STEPS, ",", 1.0),
        (epochs, f"train, mean of the {period}", figures.TRAIN, "o", 1.6),
        (evaluations, f"{evaluated}, after the {period}", figures.EVALUATED, "s", 1.6),
    )
    panels: dict[str, list[figures.Curve]] = {}
    for rows, label, color, marker, width in drawn:
        if not rows:
            continue
        _, last_values = rows[-1]
        for name in last_values:
            points = [(step / unit, values[name]) for step, values in rows if name in values]
            panels.setdefault(name, []).append(figures.Curve(label, points, color, marker, width))
    return panels


def _summary(outcome: Outcome) -> dict[str, object]:
    """Returns the content of summary.json; figures of speed are null where too few steps were measured.

    `taken_step` is the step of the weights that the run keeps. `input_wait` is the fraction of the measured time in
    which steps waited for their examples. `model_flop_utilization` is the MFU, a fraction. Times are in ms.
    """
    result = outcome.result
    meter = result.meter
    rate = meter.rate
    step_ms = None
    cpu_ms = None
    if rate:
        step_ms = 1000.0 / rate
        cpu_ms = 1000.0 * meter.cpu_seconds / meter.steps
    tokens_per_batch = outcome.config.dataset.batch_size * outcome.splits.train.task.tokens
    summary: dict[str, object] = {
        "steps": result.steps,
        "taken_step": result.taken,
        "ended": result.ended,
        "steps_per_second": rate or None,
        "step_ms": step_ms,
    }
    if tokens_per_batch:
        summary["tokens_per_second"] = tokens_per_batch * rate or None
    summary |= {
        "cpu_ms_per_step": cpu_ms,
        "measured_steps": meter.steps,
        "input_wait": meter.input_wait,
        "model_flop_utilization": outcome.mfu,
    }
    for name, value in outcome.plan.items():
        summary[name.replace("/", "_")] = value
    summary |= prefixed("train_", result.epoch_means)
    for prefix, evaluation in (("eval", result.evaluation), ("test", result.test)):
        if evaluation is not None:
            summary |= prefixed(f"{prefix}_", evaluation.metrics)
            summary[f"{prefix}_examples"] = evaluation.examples
    return summary


def show_result(outcome: Outcome, console: Console) -> None:
    """Prints the table of a run's result."""
    result = outcome.result
    rows = [("steps", f"{result.steps:,}")]
    rate = result.meter.rate
    if rate:
        examples = rate * outcome.config.dataset.batch_size
        throughput = f"{examples:,.0f} examples/s"
        tokens = outcome.splits.train.task.tokens
        if tokens:
            throughput += f", {examples * tokens:,.0f} tokens/s"
        rows.append(("steps/s", f"{rate:.1f} ({throughput})"))
        if outcome.mfu is not None:
            rows.append(("model FLOPs utilization (MFU)", f"{outcome.mfu:.1%}"))
    period = "epoch" if outcome.length.by_epochs else "period"
    for name, value in result.epoch_means.items():
        rows.append((f"train {name}, last {period}", shown(value)))
    for split, evaluation in outcome.evaluations.items():
        for name, value in evaluation.metrics.items():
            rows.append((f"{split} {name}", shown(value)))
        name, text = rows[-1]
        rows[-1] = (name, f"{text} ({evaluation.examples:,} examples)")
    console.print(result_table(rows))
