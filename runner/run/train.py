"""One training run from a checked config: data, tracker, engine, loop, files, record."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import runner.data
from runner import mesh
from runner.config import cautions
from runner.config.convert import as_typed, flatten, resolved
from runner.config.errors import EngineError, Interrupted, TrackingError, UnsavedError
from runner.config.schema import RunConfig
from runner.data import Dataset
from runner.engine import make_engine
from runner.engine.base import DataSpec, Engine, ShowsPieces, as_float, hold, holds_images
from runner.host.logs import quiet_native_log
from runner.host.outputs import required, spared
from runner.host.signals import current, heard, interruption
from runner.plan.command import compile_step, plan_engine
from runner.plan.files import write_files
from runner.plan.rates import utilisation
from runner.sweep import member
from runner.sweep.identity import CODE_TAG, CONFIG_TAG, code_version, config_hash
from runner.tracking import Status, Tracker, open_tracker
from runner.training import feed, lengths, loop, plots, profile
from runner.training.checkpoint import recovery
from runner.training.checkpoint.resume import load
from runner.training.display import config_tree, make_display, result_table
from runner.verify.record import verify_recorded

logger = logging.getLogger(__name__)

_ENDED = "runner.ended"  # why a run ended, in words
_TOLD = ("sweep", "plan", "verify", "export")  # groups that say nothing of a run


def run(config: RunConfig, composed: DictConfig) -> None:
    """Trains, evaluates and records; no other process goes on with the run until this returns.

    Args:
      config: checked.
      composed: the same as Hydra composed it, for the record.

    Raises:
      Interrupted: a signal ended the run, which is recorded as KILLED.
      DataError, EngineError, TrackingError, ConfigError: what failed, in one line; the run is recorded as FAILED.
    """
    with ExitStack() as held:
        _run(config, composed, held)


def _run(config: RunConfig, composed: DictConfig, held: ExitStack) -> None:
    console = Console(highlight=False)
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(config, composed)
    before = recovery.open_previous(config, content, held)
    if member.membership() is None:  # a sweep says in a line what its jobs differ in
        console.print(config_tree(content))
    with required(folder):
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    for warning in cautions.of_config(config):
        _warn(console, warning)
    for line in before.says() if before else []:
        console.print(line, soft_wrap=True, markup=False)
    with heard() as stop:
        data = runner.data.load(config.dataset)
        total = lengths.total_steps(config, data.train.size)
        lengths.check_memory(config, data.train)
        recovery.check_unfinished(config, before, total)
        profile.check(config, total)
        command = shlex.join(["python", "-m", "runner", *as_typed(HydraConfig.get().overrides.task)])
        run_id, finished = before.resumed_run_id if before else None, ExitStack()
        with recorded(open_run(config, content, command, resume_run_id=run_id), console) as tracker:
            checkpoint, goes_back = (before.checkpoint, before.goes_back) if before else (None, False)
            points = recovery.NewPoints(tracker, checkpoint, goes_back=goes_back)
            _log_inputs(tracker, folder, data, config)
            if config.trainer.verify_first:
                verify_recorded(config, content, data, folder, tracker, console)
            with quiet_native_log(folder / "runner.log"):
                engine = make_engine(config, _data_spec(data), total)
                engine.build()
                hold(engine, data.train.images)
                if before is not None:
                    load(engine, before.checkpoint)
                warnings, measures = _log_plan(config, engine, data, tracker, folder)
            points.log_changed(before.checkpoint.step if before else 0, measures, content)
            warnings += cautions.of_rates(config.optimizer, total) + _doubted_outputs(config, engine, data)
            for warning in warnings:
                _warn(console, warning)
            _say_examples(console, config, data)
            display = make_display(config.trainer.progress, console, config.trainer.epochs, _evaluated(config))

            def tell(line: str, tags: Mapping[str, str]) -> None:
                console.print(line, soft_wrap=True, markup=False)
                tracker.set_tags(tags)

            profiler = profile.Profiler(config.trainer.profile, engine.trace, folder)
            with recovery.saving(config, content, engine, tracker, folder, before, finished, held) as saver:
                start = loop.Start(before.checkpoint.step, before.checkpoint.history()) if before else None
                log = member.reporting(points.log, folder)
                around = loop.Around(log, points.forget, tell, display, stop, saver, profiler)
                with stop.deferring():  # the loop asks between device calls
                    result = loop.train(config, engine, data, around, start)
                stop.raise_if_requested()
                tell(result.ended, {_ENDED: result.ended})
                used = utilisation(config.plan, measures, result.meter.steps_per_second)
                if used is not None:
                    points.log(result.steps, {"throughput/model_flop_utilisation": used})
                with _unsaved(result, tracker):
                    _record_result(config, engine, data, result, used, tracker, folder)
                    _record_profile(profiler.folder, tracker, console)
                    console.print(result_table(_result_rows(config, result, used)))
        finished.close()


def open_run(
    config: RunConfig,
    content: Mapping[str, object],
    command: str,
    prefix: str = "",
    resume_run_id: str | None = None,
) -> Tracker:
    """Starts a tracked run with the config as its params.

    Args:
      config: checked.
      content: the same resolved, as plain values.
      command: what was typed.
      prefix: of the run's name, which is made of model, mesh and layout where the config gives none.
      resume_run_id: a run that goes on; null: a new one.
    """
    choices = {k: str(v) for k, v in HydraConfig.get().runtime.choices.items() if not k.startswith("hydra/")}
    name = "-".join([prefix + choices["model"], choices["mesh"], choices["layout"], f"b{config.dataset.batch_size}"])
    tags = {f"runner.{group}": choice for group, choice in choices.items() if group not in _TOLD and choice != "None"}
    tags[CONFIG_TAG] = config_hash(content)
    if not prefix:  # a training run, which can stand for another of the same config
        tags[CODE_TAG] = code_version(config.model.target)
    sweep = member.membership()
    return open_tracker(
        config.tracking,
        run_name=sweep.name if sweep else name,
        params=dict(flatten(content)) | {"run.command": command},
        tags=tags | (sweep.tags() if sweep else {}),
        resume_run_id=resume_run_id,
        parent_run_id=sweep.parent() if sweep else None,
    )


@contextmanager
def _unsaved(result: loop.Result, tracker: Tracker) -> Iterator[None]:
    """Fails a run whose state could not be saved, after as much of its results is recorded as can be.

    Raises:
      UnsavedError: it could not.
    """
    if result.unsaved is None:
        yield
        return
    tracker.set_tags({loop.UNSAVED: result.unsaved})
    try:
        yield
    except OSError as error:  # the same disk is full, or it is another
        logger.exception("results are not recorded")
        raise UnsavedError(f"{result.unsaved}; not all of its results are recorded ({error})") from error
    raise UnsavedError(result.unsaved)


@contextmanager
def recorded(tracker: Tracker, console: Console) -> Iterator[Tracker]:
    """Finishes the tracked run with the status that tells how its body ended, and says where the run can be seen.

    Raises:
      TrackingError: the body ended well, and something that it recorded is lost.
    """
    status: Status = "FAILED"
    kept = True
    try:
        current().raise_if_requested()  # it may have come while the run was opened
        yield tracker
        current().raise_if_requested()
        status = "FINISHED"
    except BaseException as error:
        if (signum := interruption(error)) is not None:
            status = "KILLED"
            unsaved = error.unsaved if isinstance(error, Interrupted) else ""
            tracker.set_tags({_ENDED: str(Interrupted(signum, unsaved))})
            lost = f", {unsaved}" if unsaved else ""
            told = f"metrics up to the last step are kept{lost}, the run's status is KILLED"
            console.print(f"interrupted: {told if tracker.run_id else f'nothing is tracked{lost}'}", soft_wrap=True)
        elif isinstance(error, EngineError):
            tracker.set_tags({_ENDED: str(error)})
        raise
    finally:
        kept = tracker.finish(status)
        for line in tracker.describe():
            console.print(line, soft_wrap=True, markup=False)
    if not kept:
        raise TrackingError(
            f"not all of run {tracker.run_id} is recorded: neither the store nor any place for what it does not take "
            f"could be written; make room, then resume={tracker.run_id} records the points again"
        )


def _warn(console: Console, warning: str) -> None:
    console.print(f"warning: {warning}", soft_wrap=True, markup=False)


def _doubted_outputs(config: RunConfig, engine: Engine, data: Dataset) -> list[str]:
    """Returns a warning where the model gives no logits, by its outputs for one batch; evaluation compiles no more."""
    batch = feed.evaluation(data.eval, lengths.eval_batch_size(config, data.eval.size), 1)
    return cautions.of_outputs(engine.evaluate(batch).logits)


def _data_spec(data: Dataset) -> DataSpec:
    height, width, channels = data.train.images.shape[1:]
    return DataSpec((int(height), int(width), int(channels)), data.num_classes)


def _log_inputs(tracker: Tracker, folder: Path, data: Dataset, config: RunConfig) -> None:
    tracker.log_artifact(folder / "config.yaml")
    for context in ("train", "eval") if config.trainer.overfit_batches is None else ("train",):
        tracker.log_dataset(f"{data.name} {context}", data.digest, data.source, context)


def _log_plan(
    config: RunConfig, engine: Engine, data: Dataset, tracker: Tracker, folder: Path
) -> tuple[list[str], Mapping[str, float]]:
    """Compiles the step for the loop's calls, which costs no second compilation, and records its plan.

    Returns:
      The layout's warnings, and the plan's measures.
    """
    capacity = feed.call_size(config, data.train, holds_images(engine)).capacity
    compile_step(engine, _data_spec(data), config.dataset.batch_size, capacity)
    try:
        plan = plan_engine(config, engine)
    except EngineError as error:  # training needs no plan
        logger.warning("no plan: %s", error)
        return [], {}
    for path in write_files(plan, folder):
        tracker.log_artifact(path)
    return list(plan.warnings), plan.metrics()


def _evaluated(config: RunConfig) -> str:
    """Returns in a word what evaluations are on."""
    return "test" if config.trainer.overfit_batches is None else "overfit"


def _say_examples(console: Console, config: RunConfig, data: Dataset) -> None:
    trainer, left = config.trainer, data.train.size % config.dataset.batch_size
    if trainer.overfit_batches is not None:
        count = feed.evaluated_split(config, data).size
        line = (
            f"trains on the same {count:,} examples in every epoch, and evaluates on these (trainer.overfit_batches)"
        )
    elif left and config.dataset.remainder == "drop" and not (trainer.steps_per_epoch or trainer.limit_train_batches):
        line = (
            f"each epoch leaves out {left} of {data.train.size:,} training examples, its last partial batch "
            "(dataset.remainder=pad counts them)"
        )
    else:
        return
    console.print(line, soft_wrap=True)


def _record_profile(folder: Path, tracker: Tracker, console: Console) -> None:
    """Records the trace of a few steps, where one was made."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            tracker.log_artifact(path, path.parent.relative_to(folder.parent).as_posix())
            console.print(f"trace: {path}", soft_wrap=True, markup=False)


def _record_result(
    config: RunConfig,
    engine: Engine,
    data: Dataset,
    result: loop.Result,
    used: float | None,
    tracker: Tracker,
    folder: Path,
) -> None:
    history, evaluated = result.history, result.evaluation
    seen = feed.evaluated_split(config, data)
    files: dict[str, Callable[[Path], object]] = {
        "curves.png": lambda path: plots.curves(
            path, history.train, history.evaluations, lengths.epoch_steps(config, data.train.size), _evaluated(config)
        ),
        "confusion.png": lambda path: plots.confusion(path, evaluated.confusion, data.class_names),
        "wrong.png": lambda path: plots.wrong(path, seen.images, seen.labels, evaluated.logits, data.class_names),
    }
    summary = {
        "steps": result.steps,
        "taken_step": result.taken,
        "ended": result.ended,
        "steps_per_second": result.meter.steps_per_second,
        "step_ms": 1000.0 / result.meter.steps_per_second if result.meter.steps_per_second else 0.0,
        "cpu_ms_per_step": 1000.0 * result.meter.cpu_seconds / max(result.meter.steps, 1),
        "measured_steps": result.meter.steps,
        "model_flop_utilisation": used,  # of plan.gflops; null where that is not set
        "train_loss": result.epoch_loss,
        "train_accuracy": result.epoch_accuracy,
        "eval_loss": result.evaluation.loss,
        "eval_accuracy": result.evaluation.accuracy,
        "eval_examples": result.evaluation.examples,
    }
    files["summary.json"] = lambda path: path.write_text(json.dumps(summary, indent=2) + "\n")
    if isinstance(engine, ShowsPieces):
        shape = (config.dataset.batch_size // config.trainer.accumulate_steps, *data.train.images.shape[1:])
        of = "a batch" if config.trainer.accumulate_steps == 1 else "a part of a batch"
        title = f"{of}, {shape[0]} images, on mesh {mesh.describe(config.mesh.axes)}"
        pieces = engine.image_pieces()
        files["sharding.png"] = lambda path: plots.sharding(path, shape, pieces, title)
    for name, write in files.items():
        with spared(str(folder / name)):
            write(folder / name)
            tracker.log_artifact(folder / name)
    if config.trainer.log_model and config.tracking.name != "none":
        with quiet_native_log(folder / "runner.log"):  # to save a model, Keras 3 loads TensorFlow where that is there
            tracker.log_keras_model(engine.plain_model(), as_float(data.eval.images[:2]))


def _result_rows(config: RunConfig, result: loop.Result, used: float | None) -> list[tuple[str, str]]:
    rate = result.meter.steps_per_second
    evaluation = result.evaluation
    return [
        ("mesh", mesh.describe(config.mesh.axes)),
        ("steps", f"{result.steps:,}"),
        ("steps/s", f"{rate:.1f} ({rate * config.dataset.batch_size:,.0f} examples/s)"),
        *([] if used is None else [("model FLOP utilisation", f"{used:.1%} of {config.plan.gflops:,g} GFLOP/s")]),
        ("train loss, last epoch", f"{result.epoch_loss:.4f}"),
        ("train accuracy, last epoch", f"{result.epoch_accuracy:.4f}"),
        (f"{_evaluated(config)} loss", f"{evaluation.loss:.4f}"),
        (f"{_evaluated(config)} accuracy", f"{evaluation.accuracy:.4f} ({evaluation.examples:,} examples)"),
    ]
