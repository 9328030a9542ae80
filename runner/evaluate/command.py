"""Evaluates a run's checkpoint and adds the result to the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.augment import Augmented
from runner.data.base import Dataset, DataSource, Encoding
from runner.engine import devices, registry
from runner.errors import ConfigError, invalid
from runner.evaluate.report import EvaluationReport
from runner.evaluate.saved import evaluated, open_saved, place_of, restored
from runner.host import stages
from runner.host.console import Console
from runner.host.outputs import required
from runner.host.signals import heard
from runner.layout import mesh
from runner.processes.team import current
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.tracking.attach import attach
from runner.training import samples
from runner.training.display import result_table
from runner.training.samples import sample

_SAMPLE = "sample.txt"
_WORDS = ("train", "validation", "test")


def run(config: RunConfig, composed: DictConfig) -> None:
    """Evaluates, prints the result and records it in the run.

    Args:
      config: checked; of the run, with what was typed besides.
      composed: the same as Hydra composed it, for the record.

    Raises:
      ConfigError: there is no such run, checkpoint or split, or it is of another model.
      DataError, EngineError, TrackingError, Interrupted: as in training.
    """
    console = Console()
    team = current()
    saved = open_saved(config, "runner.evaluate")
    where = devices.line(config, composed)
    folder = Path(HydraConfig.get().runtime.output_dir)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed))))
    with heard():
        store = attach(config.tracking, saved.run.run_id if team.is_first else None)
        registry.prepare(config)
        data = _loaded(config, saved.encoding)
        team.agree("the data's SHA-256", data.digest)
        task = make_task(config.task, data.specs, data.train, saved.constants, data.vocabulary)
        if config.evaluate.prompt is not None:
            task.check_prompt(config.evaluate.prompt)
        source, split = _chosen(config, data)
        task.check_split(source, split)
        engine = restored(config, saved, DataSpec(task.arrays, task), folder / "runner.log")
        with stages.stage(f"evaluating {split}"):
            found = evaluated(config, engine, task, source, config.trainer.limit_eval_batches, keep_outputs=True)
            text = sample(config, engine, task, saved.checkpoint.step, config.evaluate.prompt)
        if not team.is_first:
            return
        shown = task.report(found, source, split)
        report = EvaluationReport(
            run=saved.run.run,
            step=saved.checkpoint.step,
            dataset=data.name,
            split=split,
            mesh=mesh.describe(config.mesh.axes),
            metrics=found.metrics,
            examples=found.examples,
            tables=shown.tables,
        )
        for line in where:
            console.print(line, soft_wrap=True, markup=False)
        for table in report.printed():
            console.print(table)
        console.print(result_table(report.totals()))
        for name, write in shown.files.items():
            write(folder / name)
        files = [folder / "config.yaml", *report.write(folder), *(folder / name for name in shown.files)]
        if text is not None:
            files.append(folder / _SAMPLE)
            files[-1].write_text(text, "utf-8")
            console.print("\n".join([f"sample of {_SAMPLE}:", *samples.shown(text)]), soft_wrap=True, markup=False)
        place = place_of(config, saved, split)
        store.log_metrics(saved.checkpoint.step, report.logged(place))
        store.log_artifacts(files, f"evaluate/{place}/step-{saved.checkpoint.step:09d}")
    for line in [f"files: {folder}", *store.describe()]:
        console.print(line, soft_wrap=True, markup=False)


def _loaded(config: RunConfig, encoding: Encoding | None) -> Dataset:
    """Loads the dataset; a split expression is in the place of its test split."""
    if config.evaluate.split in _WORDS:
        return loading.load_run(config, encoding)
    try:
        test = replace(config.dataset, test=config.evaluate.split)
        return loading.load_run(replace(config, dataset=test), encoding)
    except ConfigError as error:
        raise ConfigError(str(error).replace("dataset.test=", "evaluate.split=")) from error


def _chosen(config: RunConfig, data: Dataset) -> tuple[DataSource, str]:
    """Returns the split that `evaluate.split` asks for, and its expression where it has one."""
    wanted = config.evaluate.split
    if wanted == "train":  # as an evaluation sees it: nothing is drawn
        plain = replace(data.train, training=False) if isinstance(data.train, Augmented) else data.train
        return plain, "train" if config.dataset.holdout else config.dataset.train
    if wanted == "validation":
        if data.validation is None:
            raise invalid(
                "evaluate.split",
                wanted,
                problem="train, test or a split expression, as the run has no validation split",
                fix="set evaluate.split=test",
            )
        return data.validation, config.dataset.validation or wanted
    return data.test, config.dataset.test or wanted if wanted == "test" else wanted
