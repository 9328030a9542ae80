"""A saved run as evaluation and export see it: its checkpoint, and the engine with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.config.convert import flatten
from runner.config.schema import RunConfig
from runner.data import workers
from runner.data.base import DataSource
from runner.data.splits import Slice, parse_split
from runner.engine import make_engine
from runner.engine.base import Engine
from runner.errors import invalid
from runner.host.logs import quiet_native_log
from runner.processes.team import current
from runner.task.base import DataSpec, Evaluation, Task
from runner.training import feed
from runner.training.checkpoint import runs
from runner.training.checkpoint.arguments import folder_of
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.resume import Previous, load
from runner.training.checkpoint.runs import SavedRun


def open_saved(config: RunConfig, command: str) -> Previous:
    """Opens the run that `run=` names, and its checkpoint.

    Args:
      config: checked.
      command: as `runner.evaluate`, for the refusals.

    Raises:
      ConfigError: no run is named, there is no such run, or its checkpoint is damaged or of a newer format.
    """
    for key, value in (("resume", config.resume), ("branch", config.branch)):
        if value is not None:
            raise invalid(key, value, problem=f"{key} trains on, {command} takes run", fix="write run=...")
    if config.run is None:
        raise invalid(
            "run", None, problem=f"{command} needs a run that left checkpoints", fix="set run=latest or run=<run id>"
        )
    folder = folder_of(config.trainer.checkpoint)
    opened = list[Previous]()
    team = current()

    def find() -> tuple[str, dict[str, Any], str]:
        found, step = runs.find("run", str(config.run), folder)
        opened.append(Previous(found, runs.open_checkpoint("run", found, step)))
        return str(found.folder), dict(found.record), str(opened[0].checkpoint.folder)

    where, record, checkpoint = team.broadcast("the recorded run", find)
    if opened:
        return opened[0]
    return Previous(SavedRun(Path(where), record), Checkpoint(Path(checkpoint), trusted=True))


def restored(config: RunConfig, saved: Previous, data: DataSpec, log: Path) -> Engine:
    """Returns the config's engine with the checkpoint's weights, under the config's mesh and layout.

    Args:
      config: checked.
      saved: the run's.
      data: of the config's dataset and task.
      log: file that gets what native code says.

    Raises:
      ConfigError: the checkpoint is of another model, or the layout does not fit.
      EngineError: the canary found wrong arithmetic on this mesh.
    """
    with quiet_native_log(log):
        engine = make_engine(config, data, max(saved.checkpoint.step, 1))
        engine.build()
        load(engine, saved.checkpoint)
    return engine


def evaluated(
    config: RunConfig, engine: Engine, task: Task, source: DataSource, limit: int | None, *, keep_outputs: bool = False
) -> Evaluation:
    """Evaluates a split, as training does.

    Args:
      config: checked.
      engine: with its weights.
      task: of the split.
      source: every example counts once.
      limit: evaluates that many batches only; null: every example.
      keep_outputs: give the model's outputs too.
    """
    with workers.opened(config.dataset, config.trainer.seed) as readers:
        examples = feed.Examples(source, task, readers.reader(source), share=feed.share_of(config))
        batches = feed.evaluation_of(config, examples, limit)
        return engine.evaluate(batches, keep_outputs=keep_outputs)


def split_key(text: str) -> str:
    """Returns a split expression as part of a metric's name.

    >>> split_key("test"), split_key("test[:1000]"), split_key("train[10%:]+test")
    ('test', 'test_0-1000', 'train_10pct-end_and_test')
    """

    def one(term: Slice) -> str:
        if term.start is None and term.stop is None:
            return term.name
        unit = "pct" if term.percent else ""
        start, stop = (None if bound is None else f"{bound:g}{unit}" for bound in (term.start, term.stop))
        return f"{term.name}_{start or 0}-{stop or 'end'}"

    return "_and_".join(one(term) for term in parse_split(text))


def place_of(config: RunConfig, saved: Previous, split: str) -> str:
    """Returns where an evaluation's figures go in the run: the split's name, behind another dataset's.

    Args:
      config: checked.
      saved: the run's.
      split: `validation`, or a split expression.
    """
    trained = dict(flatten(saved.checkpoint.about["config"])).get("dataset.name")
    key = split_key(split)
    return key if config.dataset.name == trained else f"{config.dataset.name.replace('/', '_')}/{key}"
