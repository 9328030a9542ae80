"""Evaluates a run's checkpoint and adds the result to the run."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import runner.data
from runner import mesh
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.evaluate.report import make_report
from runner.evaluate.saved import evaluated, open_saved, place_of, restored
from runner.host.outputs import required
from runner.host.signals import heard
from runner.tracking.attach import attach
from runner.training import plots
from runner.training.display import result_table


def run(config: RunConfig, composed: DictConfig) -> None:
    """Evaluates, prints the result and records it in the run.

    Args:
      config: checked; of the run, with what was typed besides.
      composed: the same as Hydra composed it, for the record.

    Raises:
      ConfigError: there is no such run or checkpoint, or it is of another model.
      DataError, EngineError, TrackingError, Interrupted: as in training.
    """
    console = Console(highlight=False)
    saved = open_saved(config, "runner.evaluate")
    folder = Path(HydraConfig.get().runtime.output_dir)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved(config, composed))))
    with heard():
        store = attach(config.tracking, saved.run.run_id)
        data = runner.data.load(config.dataset)
        engine = restored(config, saved, data, folder / "runner.log")
        metrics = evaluated(config, engine, data.eval, config.trainer.limit_eval_batches)
        report = make_report(
            metrics,
            data.class_names,
            run=saved.run.run,
            step=saved.checkpoint.step,
            dataset=data.name,
            split=config.dataset.eval,
            mesh=mesh.describe(config.mesh.axes),
        )
        console.print(report.table())
        console.print(result_table(report.totals()))
        pictures = [folder / "confusion.png", folder / "wrong.png"]
        plots.confusion(pictures[0], metrics.confusion, data.class_names, config.dataset.eval)
        plots.wrong(
            pictures[1], data.eval.images, data.eval.labels, metrics.logits, data.class_names, config.dataset.eval
        )
        files = [folder / "config.yaml", *report.write(folder), *pictures]
        place = place_of(config, saved)
        store.log_metrics(saved.checkpoint.step, report.metrics(place))
        store.log_artifacts(files, f"evaluate/{place}/step-{saved.checkpoint.step:09d}")
    for line in [f"files: {folder}", *store.describe()]:
        console.print(line, soft_wrap=True, markup=False)
