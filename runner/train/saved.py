"""A recorded run for evaluation and export: its checkpoint, and an engine with the checkpoint's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.checkpoint import runs
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.resume import Previous, load, opened_by_first
from runner.cluster.team import current
from runner.config.convert import flatten
from runner.config.schema import CheckpointConfig, RunConfig, TaskConfig
from runner.config.schema_data import DatasetConfig
from runner.data import loading, workers
from runner.data.base import Dataset, DataSource
from runner.engine import make_engine, registry
from runner.engine.common import Engine
from runner.errors import invalid
from runner.host.outputs import quiet_native_log
from runner.task.base import DataSpec, Evaluation, Task
from runner.task.registry import make_task
from runner.tracking.records import clean_key
from runner.train import feed


def open_saved(reference: str | None, config: CheckpointConfig, command: str) -> Previous:
    """Opens the run that `run=` names (`reference`), and its checkpoint. Raises ConfigError if it can't."""
    if reference is None:
        problem = f"{command} needs a run that left checkpoints"
        raise invalid("run", None, problem=problem, fix="set run=latest or run=<run id>")
    root = folder_of(config.folder)

    def find() -> Previous:
        run, step = runs.find("run", reference, root)
        return Previous(run, runs.open_checkpoint("run", run, step))

    saved = opened_by_first("the recorded run", find)
    assert saved is not None
    return saved


def prepared(config: RunConfig, saved: Previous, split: str | None = None) -> tuple[Dataset, Task]:
    """Prepares the engine; returns the data, with `split` as its test split, and the task as the run had them."""
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, saved.encoding, config.task, split)
    current().agree("the data's SHA-256", data.digest)
    return data, make_task(config.task, data.specs, data.train, saved.constants, data.vocabulary)


def restored(config: RunConfig, saved: Previous, data: DataSpec, log: Path) -> Engine:
    """Returns the config's engine with the checkpoint's weights; a ConfigError if they or the layout don't fit."""
    with quiet_native_log(log):
        # Schedules need a length of at least one step; nothing is trained, so its value has no effect.
        unpadded = replace(config, dataset=replace(config.dataset, remainder="drop"))
        engine = make_engine(unpadded, data, max(saved.checkpoint.step, 1))
        engine.build()
        load(engine, saved.checkpoint)
    return engine


def evaluated(
    engine: Engine, dataset: DatasetConfig, config: TaskConfig, task: Task, source: DataSource, limit: int | None
) -> Evaluation:
    """Evaluates a split, as training does, and keeps the outputs."""
    with workers.Workers(dataset) as readers:
        examples = feed.Examples(source, task, readers.reader(source), share=feed.share_of(engine))
        batches = feed.evaluation_of(dataset, config, engine, examples, limit)
        return engine.evaluate(batches, keep_outputs=True)


def place_of(config: DatasetConfig, saved: Previous, split: str) -> str:
    """Returns the name of an evaluation's metrics in the run: the split, with another dataset's name before it."""
    trained = dict(flatten(saved.checkpoint.about["config"])).get("dataset.name")
    if config.name != trained:
        split = f"{config.name.replace('/', '_')}/{split}"
    return clean_key(split)
