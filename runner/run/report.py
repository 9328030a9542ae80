"""Report of a finished run: files, the logged model and the table that is printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from runner import arrays
from runner.config.schema import RunConfig
from runner.data.base import Array, DataSource
from runner.engine.base import Engine, SavesLight, ShowsPieces
from runner.host.logs import quiet_native_log
from runner.host.outputs import spared
from runner.layout import mesh
from runner.optim import schedules
from runner.plan.files import LEARNING_RATE_PICTURE
from runner.processes.team import current
from runner.task.base import Evaluation, Task
from runner.task.metrics import EVAL, MAXIMIZE, TEST
from runner.tracking import Tracker
from runner.training import lengths, loop, plots
from runner.training.display import result_table, shown
from runner.training.feed import Splits
from runner.training.lengths import RunLength
from runner.training.recorder import prefixed

_EXAMPLE_ROWS = 2  # of the input example, from which MLflow infers the signature of the logged model
Writer = Callable[[Path], object]


@dataclass(frozen=True)
class Outcome:
    """A finished run, as its report reads it.

    Attributes:
      config: checked.
      engine: with the weights that the run keeps.
      splits: its examples.
      result: of the training loop.
      used: share of a device's peak that training used; None where that is not known.
      peak_gflops: the peak, `plan.gflops` or that of a known GPU.
    """

    config: RunConfig
    engine: Engine
    splits: Splits
    result: loop.Result
    used: float | None
    peak_gflops: float | None = None

    @property
    def length(self) -> RunLength:
        """Length of the run by its config; with early stopping it may have ended before."""
        train = self.splits.train
        return lengths.run_length(self.config, train.size, train.task.tokens)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Evaluations of the weights that the run keeps, by split."""
        evaluations = {self.splits.selecting_name: self.result.evaluation}
        if self.result.test is not None:
            evaluations["test"] = self.result.test
        return evaluations

    @property
    def results(self) -> dict[str, float]:
        """Metrics of `evaluations`, named as they are logged."""
        results = prefixed(EVAL, self.result.evaluation.metrics)
        if self.result.test is not None:
            results |= prefixed(TEST, self.result.test.metrics)
        return results


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
    if config.trainer.log_model and config.tracking.name != "none":
        _log_model(outcome, tracker, folder)


def _log_model(outcome: Outcome, tracker: Tracker, folder: Path) -> None:
    engine = outcome.engine
    saving: AbstractContextManager[object] = nullcontext()
    if isinstance(engine, SavesLight):
        saving = engine.saving()
    with quiet_native_log(folder / "runner.log"):
        example = model_inputs(outcome.splits.train.task, outcome.splits.reported.source, _EXAMPLE_ROWS)
        model = engine.plain_model()
        with saving:
            tracker.log_keras_model(model, example)


def model_inputs(task: Task, source: DataSource, count: int) -> Array | dict[str, Array]:
    """Returns the first examples of a split as the model takes them, at most `count`."""
    rows = np.arange(min(count, source.size))
    inputs: Array | dict[str, Array] = task.inputs(arrays.of(np), source.read(rows))
    return inputs


def _files(outcome: Outcome) -> dict[str, Writer]:
    """Returns name -> function that writes the file."""
    result = outcome.result
    splits = outcome.splits
    task = splits.train.task
    length = outcome.length
    past = result.history
    # Made now, not when they are written: the engine's state and the examples are at hand.
    report = task.report(result.reported, splits.reported.source, splits.reported_name)
    summary = json.dumps(_summary(outcome), indent=2) + "\n"
    files: dict[str, Writer] = {}
    if plots.has_curves(past.train, past.evaluations):
        rising = [name for name, direction in task.directions.items() if direction == MAXIMIZE]
        files["curves.png"] = lambda path: plots.curves(
            path, past.train, past.evaluations, length, splits.selecting_name, rising
        )
    rates = _actual_rates(outcome)
    if rates:
        title = schedules.description(outcome.config.optimizer) or "learning rate"
        files[LEARNING_RATE_PICTURE] = lambda path: plots.learning_rates(path, rates, title)
    files |= report.files
    files["summary.json"] = lambda path: path.write_text(summary)
    if isinstance(outcome.engine, ShowsPieces):
        files["sharding.png"] = _sharding_picture(outcome.config, task, outcome.engine)
    return files


def _actual_rates(outcome: Outcome) -> list[tuple[int, float]]:
    """Returns (steps done, rate) of a run that changed its schedule's rate; empty if the plan's picture is right."""
    reduced = outcome.result.rate_changes
    if not reduced:
        return []
    config = outcome.config
    total = outcome.length.total
    steps = {step for step, _ in schedules.sampled(config.optimizer, total)} or {0, outcome.result.steps - 1}
    for at, _ in reduced:
        # The rate jumps here.
        steps |= {max(at - 1, 0), at}
    rates: list[tuple[int, float]] = []
    for step in sorted(step for step in steps if step < outcome.result.steps):
        factor = 1.0
        for at, reduced_factor in reduced:
            if at <= step:
                factor = reduced_factor
        rates.append((step, float(schedules.learning_rate(config.optimizer, step, total)) * factor))
    return rates


def _sharding_picture(config: RunConfig, task: Task, engine: ShowsPieces) -> Writer:
    pieces = engine.input_pieces()
    microbatches = config.trainer.accumulate_steps
    size = config.dataset.batch_size // microbatches
    name = "a batch"
    if microbatches > 1:
        name = "a microbatch"
    axes = config.mesh.axes
    title = f"{name}, {size} examples, on mesh {mesh.describe(axes)}"
    specs = task.input_specs()
    return lambda path: plots.sharding(path, size, specs, pieces, axes, title)


def _summary(outcome: Outcome) -> dict[str, object]:
    """Returns the content of summary.json; figures of speed are null where too few steps were measured."""
    result = outcome.result
    meter = result.meter
    rate = None
    step_ms = None
    tokens_per_second = None
    cpu_ms_per_step = None
    tokens_per_batch = outcome.config.dataset.batch_size * outcome.splits.train.task.tokens
    if meter.is_meaningful:
        rate = meter.steps_per_second
        cpu_ms_per_step = 1000.0 * meter.cpu_seconds / meter.steps
    if rate:
        step_ms = 1000.0 / rate
        tokens_per_second = tokens_per_batch * rate
    summary: dict[str, object] = {
        "steps": result.steps,
        "taken_step": result.taken,
        "ended": result.ended,
        "steps_per_second": rate,
        "step_ms": step_ms,
    }
    if tokens_per_batch:
        summary["tokens_per_second"] = tokens_per_second
    summary |= {
        "cpu_ms_per_step": cpu_ms_per_step,
        "measured_steps": meter.steps,
        "input_wait": meter.input_wait,
        "model_flop_utilization": outcome.used,
    }
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
    if result.meter.is_meaningful:
        rate = result.meter.steps_per_second
        examples = rate * outcome.config.dataset.batch_size
        throughput = f"{examples:,.0f} examples/s"
        tokens = outcome.splits.train.task.tokens
        if tokens:
            throughput += f", {examples * tokens:,.0f} tokens/s"
        rows.append(("steps/s", f"{rate:.1f} ({throughput})"))
        if outcome.used is not None:
            rows.append(("model FLOP utilization", f"{outcome.used:.1%} of {outcome.peak_gflops:,g} GFLOP/s"))
    for name, value in result.epoch_means.items():
        rows.append((f"train {name}, {_last_period(outcome)}", shown(value)))
    for split, evaluation in outcome.evaluations.items():
        rows += _metric_rows(split, evaluation.metrics, evaluation.examples)
    console.print(result_table(rows))


def _last_period(outcome: Outcome) -> str:
    """Returns which steps the means of the training metrics are over."""
    if outcome.length.by_epochs:
        return "last epoch"
    steps = outcome.result.steps
    count = steps - outcome.length.start(steps)
    return f"last {count:,} steps"


def _metric_rows(split: str, metrics: Mapping[str, float], examples: int) -> list[tuple[str, str]]:
    """Returns one row per metric; the last one says how many examples they are of."""
    rows = [(f"{split} {name}", shown(value)) for name, value in metrics.items()]
    name, value = rows[-1]
    rows[-1] = (name, f"{value} ({examples:,} examples)")
    return rows
