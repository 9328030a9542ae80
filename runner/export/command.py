"""Exports a run's model: writes it, loads it back, compares it with the run, and records it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import runner.data
from runner import mesh
from runner.config.convert import resolved
from runner.config.errors import EngineError
from runner.config.schema import RunConfig
from runner.data import Dataset
from runner.engine.base import Array
from runner.evaluate.saved import data_spec, evaluated, open_saved, restored
from runner.export import folder as folders
from runner.export.check import TOLERANCE, Comparison, check
from runner.export.plain import make_plain, weights_in_use
from runner.export.write import SAVED_MODEL, Written, write_model
from runner.host.late import late
from runner.host.logs import quiet_native_log
from runner.host.outputs import required
from runner.host.signals import heard
from runner.tracking.attach import Attachment, attach
from runner.training.checkpoint.recovery import Previous, versions
from runner.training.display import result_table

if TYPE_CHECKING:
    from runner.export import log
else:
    log = late("runner.export.log")  # with MLflow

_SIGNATURE = {
    "name": "serving_default",
    "image": "uint8 (batch, height, width, channel), as the dataset has them; scaling is part of the model",
    "logits": "float32 (batch, classes)",
    "probabilities": "float32 (batch, classes)",
    "class": "integer (batch,)",
}


def run(config: RunConfig, composed: DictConfig) -> None:
    """Exports, checks, prints and records.

    Args:
      config: checked; of the run, with what was typed besides.
      composed: the same as Hydra composed it, for the record.

    Raises:
      ConfigError: there is no such run or checkpoint, it is of another model, or `export.folder` holds something else.
      EngineError: the export's predictions differ from the run's; nothing is left of it.
      DataError, TrackingError, Interrupted: as in training.
    """
    console = Console(highlight=False)
    config.engine.precision = "float32"  # as the weights are, so that any library computes the same
    saved = open_saved(config, "runner.export")
    target = folders.target(config.export, saved.run)
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(config, composed)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    with heard():
        store = attach(config.tracking, saved.run.run_id)
        data = runner.data.load(config.dataset)
        expected = _predictions(config, saved, data, folder / "runner.log")
        with folders.making(target) as making:
            written = _write(config, saved, data, making, folder / "runner.log")
            library = "keras" if config.engine.name == "jax" else "tf_keras"
            compared = check(making, written, library, data.eval.images, expected, folder / "runner.log")
            rows = [("run", saved.run.run), ("checkpoint of step", f"{saved.checkpoint.step:,}")]
            rows += [("mesh of the run", mesh.describe(config.mesh.axes)), ("split", config.dataset.eval)]
            console.print(result_table([*rows, *(row for name in compared for row in _rows(name, compared[name]))]))
            raise_if_different(compared)
            record = _record(saved, data, written, compared)
            (making / folders.RECORD).write_text(json.dumps(record, indent=1) + "\n")
            (making / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
        _say(console, target, written)
        _record_in_run(store, console, saved, data, target, written, compared)


def _predictions(config: RunConfig, saved: Previous, data: Dataset, log: Path) -> Array:
    """Returns the run's logits (N, C) of its test split, computed by its engine on its mesh."""
    return evaluated(config, restored(config, saved, data, log), data.eval, None).logits


def _write(config: RunConfig, saved: Previous, data: Dataset, folder: Path, log: Path) -> Written:
    with quiet_native_log(log):
        spec = data_spec(data)
        plain = make_plain(config, spec, weights_in_use(saved.checkpoint))
        convert = not config.model.target.startswith("runner.")
        tensorflow = importlib.util.find_spec("tensorflow") is not None
        return write_model(plain, spec.input_shape, folder, convert=convert, tensorflow=tensorflow)


def _rows(name: str, found: Comparison) -> list[tuple[str, str]]:
    return [
        (f"{name}, images", f"{found.examples:,}"),
        ("  largest difference of a logit", f"{found.logits:.1e}, the largest is {found.scale:.1f}"),
        ("  largest difference of a probability", f"{found.probabilities:.1e}"),
        ("  classes that differ", f"{found.classes:,}"),
    ]


def raise_if_different(compared: Mapping[str, Comparison]) -> None:
    """Fails an export that is not equal to the run.

    Args:
      compared: what was loaded again, and how it compares.

    Raises:
      EngineError: one of them differs, or there is none.
    """
    if not compared:
        raise EngineError("the export holds nothing that loads without the builder's code; install tensorflow")
    for name, found in compared.items():
        if not found.equal:
            raise EngineError(
                f"{name} differs from the run: a logit by {found.logits:.1e}, a probability by "
                f"{found.probabilities:.1e}, the class of {found.classes} of {found.examples:,} images; allowed is "
                f"{TOLERANCE:g}, of a logit times the largest one, {found.scale:.1f} and no class; nothing was written"
            )


def _record(saved: Previous, data: Dataset, written: Written, compared: Mapping[str, Comparison]) -> dict[str, Any]:
    return {
        "run": saved.run.run,
        "step": saved.checkpoint.step,
        "signature": _SIGNATURE,
        "image": list(data_spec(data).input_shape),
        "class_names": list(data.class_names),
        "left_out": list(written.left_out),
        "compared": {name: asdict(found) for name, found in compared.items()},
        "versions": versions(),
    }


def _say(console: Console, target: Path, written: Written) -> None:
    names = [SAVED_MODEL] if written.saved_model else []
    names += [written.keras] if written.keras else []
    lines = [f"{target / name}" for name in names] + [f"left out {line}" for line in written.left_out]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _record_in_run(
    store: Attachment,
    console: Console,
    saved: Previous,
    data: Dataset,
    target: Path,
    written: Written,
    compared: Mapping[str, Comparison],
) -> None:
    step, shape = saved.checkpoint.step, data_spec(data).input_shape
    found = next(iter(compared.values()))
    store.log_metrics(
        step, {"export/logit_difference": found.logits, "export/probability_difference": found.probabilities}
    )
    store.log_artifacts([target / folders.RECORD], "export")
    if written.saved_model:
        uri = store.log_model(
            lambda where, run_id: log.log_saved_model(
                where, run_id, target / SAVED_MODEL, shape, data.class_names, step=step
            )
        )
        if uri is not None:
            console.print(f"MLflow model: {uri}", soft_wrap=True, markup=False)
    for line in store.describe():
        console.print(line, soft_wrap=True, markup=False)
