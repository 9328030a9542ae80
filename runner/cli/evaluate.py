"""Evaluation of a run's checkpoint, recorded in the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from omegaconf import DictConfig
from rich.table import Table

from runner.cluster.team import current
from runner.config.convert import resolved
from runner.config.schema import DatasetConfig, RunConfig
from runner.console import Console
from runner.data.augment import Augmented
from runner.data.base import SPLITS, Dataset, DataSource
from runner.engine import devices
from runner.errors import ConfigError, invalid
from runner.host import stages
from runner.host.outputs import spared
from runner.layout import mesh
from runner.task.base import Cell, DataSpec, Report
from runner.task.base import Table as TaskTable
from runner.tracking import attach
from runner.train.display import result_table, shown
from runner.train.record import CONFIG, with_config
from runner.train.saved import evaluated, open_saved, place_of, prepared, restored

# Rows of a table that are printed, about a screenful; evaluate.json has all.
_MAX_ROWS = 40


def run(config: RunConfig, composed: DictConfig) -> None:
    """Evaluates a checkpoint, prints the result and records it in the run; raises as training does.

    A ConfigError also says that there is no such run, checkpoint or split, or that the checkpoint is of another model.
    """
    console = Console()
    team = current()
    # First, because it needs no framework: a run that does not exist is an error within a second.
    saved = open_saved(config.run, config.trainer.checkpoint, "runner.evaluate")
    # Before an engine loads, because that hides GPUs from its process.
    device_lines = devices.device_lines(config, composed)
    folder = with_config(resolved(composed, config.mesh, config.tracking.uri))
    store = attach(config.tracking, saved.run.tracking_id if team.is_first else None)
    asked = config.evaluate.split
    # A split expression takes the place of the test split.
    expression = None if asked in SPLITS else asked
    try:
        data, task = prepared(config, saved, expression)
    except ConfigError as error:
        # The user typed another key.
        if expression is not None:
            raise ConfigError(str(error).replace("dataset.test=", "evaluate.split=")) from error
        raise
    # All checks come before the model is built, which takes the time.
    source, split = _chosen(config.dataset, asked, data)
    task.check_split(source, split)
    engine = restored(config, saved, DataSpec(task.arrays, task), folder / "runner.log")
    # Every process takes part, and process 0 reports.
    with stages.stage(f"evaluating {split}"):
        evaluation = evaluated(engine, config.dataset, config.task, task, source, config.trainer.limit_eval_batches)
    if not team.is_first:
        return
    task_report = Report({}, {})
    with spared("the task's tables and pictures"):
        task_report = task.report(evaluation, source, split)
    step = saved.checkpoint.step
    description = mesh.describe(config.mesh.axes)
    found = dict(evaluation.metrics)
    console.print_lines(device_lines)
    for table in printed(task_report.tables):
        console.print(table)
    totals = [
        ("run", saved.run.id),
        ("checkpoint of step", f"{step:,}"),
        ("split", f"{split} of {data.name}"),
        ("mesh", description),
        ("examples", f"{evaluation.examples:,}"),
    ]
    for name, value in found.items():
        totals.append((name, shown(value)))
    console.print(result_table(totals))
    tables: dict[str, list[dict[str, Cell]]] = {}
    for title, (columns, rows) in task_report.tables.items():
        tables[title] = [dict(zip(columns, row, strict=True)) for row in rows]
    about = {"run": saved.run.id, "step": step, "dataset": data.name, "split": split, "mesh": description}
    # The metrics are at the top level too, which is where scripts look for them.
    content = {**about, **found, "metrics": found, "examples": evaluation.examples, "tables": tables}
    files = [folder / CONFIG, folder / "evaluate.json"]
    files[-1].write_text(json.dumps(content, indent=1) + "\n")
    for name, write in task_report.files.items():
        with spared(str(folder / name)):
            write(folder / name)
            files.append(folder / name)
    place = place_of(config.dataset, saved, split)
    points = {**found, "examples": float(evaluation.examples)}
    store.log_metrics(step, {f"evaluate/{place}/{name}": value for name, value in points.items()})
    for path in files:
        store.log_artifact(path, f"evaluate/{place}/step-{step:09d}")
    console.print_lines([f"files: {folder}", *store.describe()])


def _chosen(config: DatasetConfig, split: str, data: Dataset) -> tuple[DataSource, str]:
    """Returns the split that `evaluate.split` selects, and its expression if it has one."""
    if split == "train":
        source = data.train
        if isinstance(source, Augmented):
            source = replace(source, training=False)  # as in every evaluation
        if config.holdout != 0:  # null is a tenth, where the splits need one
            # The expression would include the examples that are held out.
            return source, split
        return source, config.train
    if split == "validation":
        if data.validation is None:
            problem = "the run has no validation split"
            raise invalid("evaluate.split", split, problem=problem, fix="set evaluate.split=test")
        return data.validation, config.validation or split
    if split == "test":
        return data.test, config.test or split
    return data.test, split


def printed(tables: Mapping[str, TaskTable]) -> list[Table]:
    """Returns a task's tables for the terminal; of a long one the first rows."""
    shown_tables: list[Table] = []
    for title, (columns, rows) in tables.items():
        table = Table(*columns, title=title if len(tables) > 1 else None)
        for row in rows[:_MAX_ROWS]:
            table.add_row(*map(_cell, row))
        if len(rows) > _MAX_ROWS:
            table.caption = f"the first {_MAX_ROWS} of {len(rows)}; all: evaluate.json"
        shown_tables.append(table)
    return shown_tables


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown(value)
    return f"{value:,}" if isinstance(value, int) else value
