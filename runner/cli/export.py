"""Export of a run's model: written, loaded again, compared with the run, and recorded."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig

from runner.checkpoint.runs import SavedRun
from runner.cluster.team import current
from runner.config.convert import resolved
from runner.config.schema import DatasetConfig, ExportConfig, RunConfig, TaskConfig
from runner.console import Console
from runner.data import loading
from runner.data.base import Array, ArraySource, Dataset
from runner.data.vocabulary import TOKENIZER
from runner.engine import devices, lengths, make_engine
from runner.engine.common import Engine
from runner.errors import EngineError, invalid
from runner.host import stages
from runner.host.late import late
from runner.host.outputs import quiet_native_log
from runner.host.paths import outputs_dir
from runner.layout import mesh
from runner.layout.paths import ema_path, is_variable
from runner.task.base import DataSpec, Task
from runner.tracking import attach
from runner.tracking.records import figure_tags
from runner.train.display import result_table
from runner.train.export.check import BATCH, TOLERANCE, Difference, check
from runner.train.export.signature import Served
from runner.train.export.write import KERAS_FILE, SAVED_MODEL, loaded_keras, write_model
from runner.train.identity import versions
from runner.train.record import CONFIG, with_config
from runner.train.saved import evaluated, open_saved, prepared, restored

if TYPE_CHECKING:
    from runner.train.export import log
else:
    # It imports MLflow, which an error of the config should not wait for.
    log = late("runner.train.export.log")

# Bytes of the examples that are compared, as float32. All examples of a small split are compared; of a large one as
# many as are computed in seconds.
_MAX_BYTES = 256 << 20
# What was exported.
RECORD = "export.json"
# All that an export may have; the record is the last to be written.
_NAMES = (SAVED_MODEL, KERAS_FILE, TOKENIZER, CONFIG, RECORD)
_KEY = "export.folder"


def run(config: RunConfig, composed: DictConfig) -> None:
    """Exports, compares, prints and records; raises as training does.

    An EngineError also says that the export's predictions differ from the run's, of which then nothing is left.
    """
    console = Console()
    team = current()
    # In float32 any library computes the same, so the export can be compared.
    config = replace(config, engine=replace(config.engine, precision="float32", state="float32"))
    saved = open_saved(config.run, config.trainer.checkpoint, "runner.export")
    # Before an engine loads, because that hides GPUs from its process.
    device_lines = devices.device_lines(config, composed)
    target = target_folder(config.export, saved.run)
    folder = with_config(resolved(composed, config.mesh, config.tracking.uri))
    native_log = folder / "runner.log"
    store = attach(config.tracking, saved.run.tracking_id if team.is_first else None)
    data, task = prepared(config, saved)
    # A language model's outputs are dropped elsewhere, as too large. Here only a few examples are compared.
    task.keeps_outputs = True
    served = Served(DataSpec(task.arrays, task), data.encoding)
    examples = _examples(config.dataset, config.task, config.trainer.seed, data, task)
    # Every process takes part in these; process 0 writes.
    engine = restored(config, saved, served.spec, native_log)
    outputs, batch = _outputs(engine, config.dataset, config.task, served, examples)
    # The plain model needs its memory.
    del engine
    if not team.is_first:
        return
    console.print_lines(device_lines)
    # The export appears in its folder when the block ends, so only after it was compared and found equal.
    with making(target) as unfinished:
        with stages.stage("writing the export"), quiet_native_log(native_log):
            # No step is taken, so the length of the training does not matter.
            unbuilt = make_engine(config, served.spec, 1)
            plain = unbuilt.plain_model(WeightsInUse(saved.checkpoint))
            has_tensorflow = importlib.util.find_spec("tensorflow") is not None
            # A user's layers may need AutoGraph to rewrite them.
            convert = not config.model.target.startswith("runner.")
            no_keras = write_model(plain, served, unfinished, convert=convert, tensorflow=has_tensorflow)
        keras = None
        with stages.stage("loading it again"):
            if no_keras is None:
                with quiet_native_log(native_log):
                    keras, no_keras = loaded_keras(plain, unfinished)
            saved_model = unfinished / SAVED_MODEL if has_tensorflow else None
            compared = check(saved_model, keras, served, examples, outputs, native_log, batch)
        count = len(next(iter(examples.values())))
        rows = [
            ("run", saved.run.id),
            ("checkpoint of step", f"{saved.checkpoint.step:,}"),
            ("mesh of the run", mesh.describe(config.mesh.axes)),
            ("split", f"{data.selection.get('test', 'test')}, {count:,} examples"),
        ]
        for name, differences in compared.items():
            if not differences:
                rows.append((name, "not compared: each call draws random numbers again"))
            rows += [(f"{name}, {answer}", str(difference)) for answer, difference in differences.items()]
        console.print(result_table(rows))
        raise_if_different(compared)
        left_out = []
        if no_keras is not None:
            left_out.append(f"{KERAS_FILE}: {no_keras}")
        if not has_tensorflow:
            left_out.append("SavedModel: tensorflow is not installed")
        record = {
            "run": saved.run.id,
            "step": saved.checkpoint.step,
            "names": served.names(),
            "left_out": left_out,
            "examples": count,
            "compared": compared,
            "versions": versions(),
        }
        (unfinished / RECORD).write_text(json.dumps(record, indent=1, default=asdict) + "\n")
        (folder / RECORD).write_text(json.dumps(record | {"folder": str(target)}, indent=1, default=asdict) + "\n")
        shutil.copyfile(folder / CONFIG, unfinished / CONFIG)
        vocabulary = data.vocabulary
        if vocabulary is not None and vocabulary.tokenizer:
            (unfinished / TOKENIZER).write_text(vocabulary.tokenizer_json(), "utf-8")
    for name in (SAVED_MODEL, KERAS_FILE, TOKENIZER):
        if (target / name).exists():
            console.print_lines([str(target / name)])
    console.print_lines([f"left out {line}" for line in left_out])
    figures: dict[str, float] = {}
    for name, difference in next(iter(compared.values())).items():
        if not difference.exact:
            figures[f"export/{name}_difference"] = difference.largest
    store.set_tags(figure_tags(figures))
    for path in (target / RECORD, target / TOKENIZER):
        if path.is_file():
            store.log_artifact(path, "export")
    uri = store.log_model(
        lambda where, run_id: log.log_model(
            where, run_id, plain, served, examples, name="export", step=saved.checkpoint.step, convert=convert
        )
    )
    if uri is not None:
        console.print_lines([f"MLflow model: {uri}"])
    console.print_lines(store.describe())


def _examples(dataset: DatasetConfig, config: TaskConfig, seed: int, data: Dataset, task: Task) -> dict[str, Array]:
    """Returns the examples that are compared (N, ...): the first of the test split, not standardized."""
    split = data.test
    if data.encoding.mean:
        raw = replace(dataset, standardize=False)
        split = loading.load(raw, seed, data.encoding, config).test
    input_bytes = sum(4 * int(np.prod(spec.shape, dtype=np.int64)) for spec in split.specs.values())
    # A language model's outputs, one row of logits per token, are larger than its inputs.
    output_bytes = 4 * task.tokens * (task.outputs.units or 1)
    count = min(split.size, max(1, _MAX_BYTES // max(input_bytes, output_bytes, 1)))
    arrays = dict(split.read(np.arange(count, dtype=np.int64)))
    for name in data.encoding.mean:
        if name in arrays:
            arrays[name] = arrays[name].astype(np.float32)
    return arrays


def _outputs(
    engine: Engine, dataset: DatasetConfig, config: TaskConfig, served: Served, examples: Mapping[str, Array]
) -> tuple[Array | Mapping[str, Array], int]:
    """Returns the run's outputs (N, ...), several by name, as its engine computes them on its mesh.

    The second is how many examples an export gets at once to answer the same.
    """
    spec = served.spec
    arrays = served.standardized(examples)
    source = ArraySource({name: arrays[name] for name in spec.arrays}, spec.arrays)
    with stages.stage("computing the run's answers"):
        evaluation = evaluated(engine, dataset, config, spec.task, source, None)
    batch = BATCH
    if evaluation.mixes_rows:
        batch = lengths.eval_batch(dataset, config, source.size, mixes_rows=True)
    return evaluation.named_outputs or evaluation.outputs, batch


class WeightsInUse(Mapping[str, Array]):
    """The weights that evaluations use: their moving averages if the run keeps them, else the weights.

    Each array is read when it is asked for, so that those of a large model are never in memory together.
    """

    def __init__(self, state: Mapping[str, Array]) -> None:
        self._state = state

    def __getitem__(self, path: str) -> Array:
        """Returns a variable's whole array."""
        average = ema_path(path)
        return self._state[average if average in self._state else path]

    def __iter__(self) -> Iterator[str]:
        return filter(is_variable, self._state)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def raise_if_different(compared: Mapping[str, Mapping[str, Difference]]) -> None:
    """Raises EngineError if an export differs from the run, or if there is none."""
    if not compared:
        raise EngineError("the export has nothing that loads without the builder's code; install tensorflow")
    for name, differences in compared.items():
        unequal = [f"{answer} ({difference})" for answer, difference in differences.items() if not difference.equal]
        if unequal:
            raise EngineError(
                f"{name} differs from the run: {', '.join(unequal)}; floats must agree to {TOLERANCE:g} of the "
                "largest value, and integers exactly; nothing was written"
            )


def target_folder(config: ExportConfig, run: SavedRun) -> Path:
    """Returns the folder of an export; raises ConfigError if it is used for something else."""
    path = outputs_dir() / "exports" / run.id
    if config.folder:
        path = Path(config.folder).expanduser().absolute()
    is_new = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if not is_new and not (path / RECORD).is_file():
        problem = "must be a new or empty folder, or that of an earlier export"
        raise invalid(_KEY, path, problem=problem, fix=f"set {_KEY}={path}/export")
    return path


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yields a folder whose files replace those of an earlier export if the block succeeds; others in `path` stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system as the target, so that renames are atomic.
    with tempfile.TemporaryDirectory(prefix=f".unfinished-{path.name}-", dir=path.parent) as workspace:
        new = Path(workspace)
        yield new
        path.mkdir(exist_ok=True)
        # Without the record first, and with it last: whoever comes in between finds no export rather than a mixed one.
        (path / RECORD).unlink(missing_ok=True)
        for name in _NAMES:
            if (path / name).is_dir():
                shutil.rmtree(path / name)
            (path / name).unlink(missing_ok=True)
            if (new / name).exists():
                (new / name).rename(path / name)
