"""What a person reads at the end of a run: files, tables, the logged model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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
from runner.processes.team import current
from runner.task.base import Evaluation, Task
from runner.task.metrics import EVAL, MAXIMIZE, TEST
from runner.tracking import Tracker
from runner.training import lengths, loop, plots
from runner.training.display import result_table, shown
from runner.training.feed import Splits

_EXAMPLE_ROWS = 2  # of the logged model's signature


@dataclass(frozen=True)
class Outcome:
    """A run that is done, as its report sees it.

    Attributes:
      config: checked.
      engine: with the weights that are taken.
      splits: its examples.
      result: what training left behind.
      used: share of a device's peak that training used; None where that is not known.
      peak_gflops: the peak, `plan.gflops` or of a known GPU.
    """

    config: RunConfig
    engine: Engine
    splits: Splits
    result: loop.Result
    used: float | None
    peak_gflops: float | None = None

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Returns what the weights that are taken were evaluated on, by the split's word."""
        found = {self.splits.selecting_name: self.result.evaluation}
        return found if self.result.test is None else {**found, "test": self.result.test}

    @property
    def results(self) -> dict[str, float]:
        """Returns the metrics of `evaluations`, named as they are logged."""
        found = {f"{EVAL}{name}": value for name, value in self.result.evaluation.metrics.items()}
        test = self.result.test.metrics if self.result.test is not None else {}
        return found | {f"{TEST}{name}": value for name, value in test.items()}


def record_result(outcome: Outcome, tracker: Tracker, folder: Path) -> None:
    """Writes and records the report's files, and logs the model; a file that the disk does not take is only said.

    Process 0 does; the others take part in what gathers the model.
    """
    for name, write in _files(outcome).items() if current().is_first else ():
        with spared(str(folder / name)):
            write(folder / name)
            tracker.log_artifact(folder / name)
    config = outcome.config
    task = outcome.splits.train.task
    if config.trainer.log_model and config.tracking.name != "none":
        engine = outcome.engine
        saving = engine.saving() if isinstance(engine, SavesLight) else nullcontext()
        with quiet_native_log(folder / "runner.log"):
            example = model_inputs(task, outcome.splits.reported.source, _EXAMPLE_ROWS)
            model = engine.plain_model()
            with saving:
                tracker.log_keras_model(model, example)


def model_inputs(task: Task, source: DataSource, count: int) -> Array | dict[str, Array]:
    """Returns a split's first examples as the model takes them."""
    inputs: Array | dict[str, Array] = task.inputs(arrays.of(np), source.read(np.arange(min(count, source.size))))
    return inputs


def _files(outcome: Outcome) -> dict[str, Callable[[Path], object]]:
    config = outcome.config
    result = outcome.result
    splits = outcome.splits
    steps = lengths.epoch_steps(config, splits.train.size)
    past = result.history
    reported = splits.train.task.report(result.reported, splits.reported.source, splits.reported_name)
    rising = [name for name, better in splits.train.task.directions.items() if better == MAXIMIZE]
    summary = json.dumps(_summary(outcome), indent=2) + "\n"
    files: dict[str, Callable[[Path], object]] = {}
    if plots.has_curves(past.train, past.evaluations):
        files["curves.png"] = lambda path: plots.curves(
            path, past.train, past.evaluations, steps, splits.selecting_name, rising
        )
    files |= {**reported.files, "summary.json": lambda path: path.write_text(summary)}
    if isinstance(outcome.engine, ShowsPieces):
        pieces = outcome.engine.input_pieces()
        parts = config.trainer.accumulate_steps
        size = config.dataset.batch_size // parts
        of = "a batch" if parts == 1 else "a part of a batch"
        title = f"{of}, {size} examples, on mesh {mesh.describe(config.mesh.axes)}"
        specs = splits.train.task.input_specs()
        axes = config.mesh.axes
        files["sharding.png"] = lambda path: plots.sharding(path, size, specs, pieces, axes, title)
    return files


def _summary(outcome: Outcome) -> dict[str, object]:
    result = outcome.result
    meter = outcome.result.meter
    rate = meter.steps_per_second if meter.is_meaningful else None
    found: dict[str, object] = {
        "steps": result.steps,
        "taken_step": result.taken,
        "ended": result.ended,
        "steps_per_second": rate,  # null, as the two below, where too few steps were measured
        "step_ms": 1000.0 / rate if rate else None,
        **_token_rate(outcome, rate),
        "cpu_ms_per_step": 1000.0 * meter.cpu_seconds / meter.steps if meter.is_meaningful else None,
        "measured_steps": meter.steps,
        "input_wait": meter.input_wait,
        "model_flop_utilization": outcome.used,  # of a device's peak; null where that is not known
    }
    found |= {f"train_{name}": value for name, value in result.epoch_means.items()}
    for prefix, evaluation in (("eval", result.evaluation), ("test", result.test)):
        if evaluation is not None:
            found |= {f"{prefix}_{name}": value for name, value in evaluation.metrics.items()}
            found[f"{prefix}_examples"] = evaluation.examples
    return found


def _token_rate(outcome: Outcome, rate: float | None) -> dict[str, float | None]:
    tokens = outcome.config.dataset.batch_size * outcome.splits.train.task.tokens
    return {"tokens_per_second": tokens * rate if rate else None} if tokens else {}


def show_result(outcome: Outcome, console: Console) -> None:
    """Prints the table of a run's result."""
    config = outcome.config
    result = outcome.result
    rate = result.meter.steps_per_second
    used = outcome.used
    rows = [
        ("steps", f"{result.steps:,}"),
    ]
    if result.meter.is_meaningful:
        examples = rate * config.dataset.batch_size
        tokens = outcome.splits.train.task.tokens
        told = f"{examples:,.0f} examples/s" + (f", {examples * tokens:,.0f} tokens/s" if tokens else "")
        rows.append(("steps/s", f"{rate:.1f} ({told})"))
    if used is not None and result.meter.is_meaningful:
        rows.append(("model FLOP utilization", f"{used:.1%} of {outcome.peak_gflops:,g} GFLOP/s"))
    rows += [(f"train {name}, last epoch", shown(value)) for name, value in result.epoch_means.items()]
    for split, evaluation in outcome.evaluations.items():
        rows += _metric_rows(split, evaluation.metrics, evaluation.examples)
    console.print(result_table(rows))


def _metric_rows(split: str, metrics: Mapping[str, float], examples: int) -> list[tuple[str, str]]:
    """Returns a row a metric; the last says how many examples they are of."""
    rows = [(f"{split} {name}", shown(value)) for name, value in metrics.items()]
    return [*rows[:-1], (rows[-1][0], f"{rows[-1][1]} ({examples:,} examples)")]
