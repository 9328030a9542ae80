"""Exports a run's model: writes it, loads it back, compares it with the run, and records it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.data import loading
from runner.data.base import Array, ArraySource, Dataset
from runner.data.vocabulary import TOKENIZER, Vocabulary
from runner.engine import devices, registry
from runner.errors import EngineError
from runner.evaluate.saved import evaluated, open_saved, restored
from runner.export import folder as folders
from runner.export.check import TOLERANCE, Comparison, check
from runner.export.drawn import drawn_answers
from runner.export.plain import WeightsInUse, make_plain
from runner.export.signature import Served
from runner.export.write import SAVED_MODEL, Written, write_model
from runner.host import stages
from runner.host.console import Console
from runner.host.late import late
from runner.host.logs import quiet_native_log
from runner.host.outputs import required
from runner.host.signals import heard
from runner.layout import mesh
from runner.processes.team import current
from runner.task.base import DataSpec, Task
from runner.task.registry import make_task
from runner.tracking.attach import attach
from runner.training.checkpoint.recovery import Previous, versions
from runner.training.display import result_table

if TYPE_CHECKING:
    from runner.export import log
else:
    log = late("runner.export.log")  # with MLflow

_MOST_BYTES = 256 << 20  # of the examples that are compared, as float32


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
    console = Console()
    team = current()
    # Every library computes float32 alike.
    config = replace(config, engine=replace(config.engine, precision="float32", state="float32"))
    saved = open_saved(config, "runner.export")
    where = devices.line(config, composed)
    target = folders.target(config.export, saved.run)
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(config, composed)
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    with heard():
        store = attach(config.tracking, saved.run.run_id if team.is_first else None)
        registry.prepare(config)
        data = loading.load_run(config, saved.encoding)
        team.agree("the data's SHA-256", data.digest)
        task = make_task(config.task, data.specs, data.train, saved.constants, data.vocabulary)
        task.keeps_outputs = True  # of the few that are compared
        spec = DataSpec(task.arrays, task)
        served = Served(spec, data.encoding)
        examples = _examples(config, data, task)
        outputs = _outputs(config, saved, served, examples, folder / "runner.log")
        if not team.is_first:
            return
        for line in where:
            console.print(line, soft_wrap=True, markup=False)
        with folders.making(target) as making:
            with stages.stage("writing the export"):
                written, drawn = _write(config, saved, served, making, folder / "runner.log")
            library = "keras" if config.engine.name == "jax" else "tf_keras"
            with stages.stage("loading it again in a fresh process"):
                compared = check(making, written, library, served, examples, outputs, folder / "runner.log", drawn)
            rows = [("run", saved.run.run), ("checkpoint of step", f"{saved.checkpoint.step:,}")]
            rows += [("mesh of the run", mesh.describe(config.mesh.axes))]
            rows += [("split", data.selection.get("test", "test"))]
            console.print(result_table([*rows, *(row for name in compared for row in _rows(name, compared[name]))]))
            raise_if_different(compared)
            record = {
                "run": saved.run.run,
                "step": saved.checkpoint.step,
                "signature": served.describe(_first(outputs)),
                "names": served.names(),
                "vocabulary": None if data.vocabulary is None else _vocabulary(data.vocabulary),
                "left_out": list(written.left_out),
                "compared": {name: asdict(found) for name, found in compared.items()},
                "versions": versions(),
            }
            (making / folders.RECORD).write_text(json.dumps(record, indent=1) + "\n")
            (making / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
            if data.vocabulary is not None:
                (making / TOKENIZER).write_text(data.vocabulary.tokenizer_json(), "utf-8")
        _say(console, target, written)
        recorded = [target / name for name in (folders.RECORD, TOKENIZER) if (target / name).is_file()]
        step = saved.checkpoint.step
        path = target / SAVED_MODEL
        answers = served.answer_specs(_first(outputs))
        found = next(iter(compared.values())).answers.items()
        differences = {name: each.largest for name, each in found if not each.exact and not each.drawn}
        if differences:
            store.log_metrics(step, {f"export/{name}_difference": value for name, value in differences.items()})
        store.log_artifacts(recorded, "export")
        if written.saved_model:
            uri = store.log_model(
                lambda where, run_id: log.log_saved_model(where, run_id, path, served, answers, step=step)
            )
            if uri is not None:
                console.print(f"MLflow model: {uri}", soft_wrap=True, markup=False)
        for line in store.describe():
            console.print(line, soft_wrap=True, markup=False)


def _examples(config: RunConfig, data: Dataset, task: Task) -> dict[str, Array]:
    """Returns the examples that are compared (N, ...), the test split's first, as they were before they were encoded.

    They are all of them, unless they take too much room.
    """
    split = data.test
    if data.encoding.mean:
        plain = replace(config, dataset=replace(config.dataset, standardize=False))
        split = loading.load_run(plain, data.encoding).test
    floats = sum(4 * int(np.prod(spec.shape, dtype=np.int64)) for spec in split.specs.values())
    floats = max(floats, 4 * task.tokens * (task.outputs.units or 1))
    count = min(split.size, max(1, _MOST_BYTES // max(floats, 1)))
    arrays = split.read(np.arange(count, dtype=np.int64))
    return {name: array.astype(np.float32) if name in data.encoding.mean else array for name, array in arrays.items()}


def _outputs(
    config: RunConfig, saved: Previous, served: Served, examples: Mapping[str, Array], log: Path
) -> Array | Mapping[str, Array]:
    """Returns the run's outputs (N, ...) for the examples, computed by its engine on its mesh; several by name."""
    spec = served.spec
    arrays = served.standardized(examples)
    source = ArraySource({name: arrays[name] for name in spec.arrays}, spec.arrays)
    engine = restored(config, saved, spec, log)
    with stages.stage("computing the run's answers"):
        found = evaluated(config, engine, spec.task, source, None, keep_outputs=True)
    return found.named_outputs or found.outputs


def _first(outputs: Array | Mapping[str, Array]) -> Array | Mapping[str, Array]:
    """Returns the outputs of the first example, whose shapes and dtypes are those of all."""
    if isinstance(outputs, Mapping):
        return {name: output[:1] for name, output in outputs.items()}
    return outputs[:1]


def _write(
    config: RunConfig, saved: Previous, served: Served, folder: Path, log: Path
) -> tuple[Written, frozenset[str]]:
    """Writes the model; returns what was written, and which answers come of random numbers."""
    with quiet_native_log(log):
        plain = make_plain(config, served.spec, WeightsInUse(saved.checkpoint))
        convert = not config.model.target.startswith("runner.")
        tensorflow = importlib.util.find_spec("tensorflow") is not None
        # First: what is written of a Keras 3 model is traced likewise.
        drawn = drawn_answers(plain, served)
        return write_model(plain, served, folder, convert=convert, tensorflow=tensorflow), drawn


def _vocabulary(vocabulary: Vocabulary) -> dict[str, object]:
    """Returns what a reader of the record must know beside the tokenizer."""
    return {"kind": vocabulary.kind, "size": vocabulary.size, "end": vocabulary.end, "sha256": vocabulary.sha256}


def _rows(name: str, found: Comparison) -> list[tuple[str, str]]:
    rows = [(f"{name}, examples", f"{found.examples:,}")]
    for answer, difference in found.answers.items():
        if difference.drawn:
            rows.append((f"  {answer}", "not compared: each call draws random numbers again"))
        elif difference.exact:
            rows.append((f"  {answer} that differ", f"{difference.differing:,}"))
        else:
            words = f"{difference.largest:.1e}, the largest is {difference.scale:.3g}"
            rows.append((f"  largest difference of {answer}", words))
    return rows


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
            words = [
                f"{answer}, which is not finite"
                if each.drawn
                else f"{answer} of {each.differing} of {found.examples:,} examples"
                if each.exact
                else f"{answer} by {each.largest:.1e} where the largest is {each.scale:.3g}"
                for answer, each in found.answers.items()
                if not each.equal
            ]
            raise EngineError(
                f"{name} differs from the run: {', '.join(words)}; allowed is {TOLERANCE:g} times the largest, and no "
                "integer; nothing was written"
            )


def _say(console: Console, target: Path, written: Written) -> None:
    names = [SAVED_MODEL] if written.saved_model else []
    names += [written.keras] if written.keras else []
    names += [TOKENIZER] if (target / TOKENIZER).is_file() else []
    lines = [f"{target / name}" for name in names] + [f"left out {line}" for line in written.left_out]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
