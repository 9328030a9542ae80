"""One training run from a checked config, from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.checkpoint import attempts, manifest, resume, runs, stopping
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.metric_history import NewPoints
from runner.checkpoint.resume import Previous
from runner.checkpoint.runs import SavedRun
from runner.checkpoint.saver import Saver, take_state
from runner.cluster.membership import membership
from runner.cluster.team import current
from runner.config import invocation
from runner.config.convert import as_typed, resolved
from runner.config.schema import (
    DatasetConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
    TrainerConfig,
    VerifyConfig,
)
from runner.console import Console
from runner.data import loading, workers
from runner.data.base import Dataset
from runner.data.vocabulary import TOKENIZER
from runner.engine import devices, lengths, listeners, make_engine, registry
from runner.engine.common import Engine
from runner.engine.optim import transformation
from runner.errors import ConfigError, EngineError, UnsavedError
from runner.host import signals, stages
from runner.host.outputs import quiet_native_log, required, spared
from runner.host.outputs import warn as warn_of_disk
from runner.layout import mesh
from runner.model import gpt_options
from runner.plan import limits, rows, tokens
from runner.plan.base import Plan
from runner.plan.checks import warnings
from runner.plan.checks.trainer import with_metrics, with_plateau_metric
from runner.plan.command import compile_step
from runner.plan.files import write_files
from runner.plan.make import make_plan
from runner.plan.rates import utilization
from runner.task import registry as task_registry
from runner.task.base import DataSpec, Task
from runner.task.registry import make_task
from runner.tracking import Tracker
from runner.tracking.records import figure_tags
from runner.train import feed, lines, loop, profile
from runner.train.callbacks import Callbacks
from runner.train.display import Display
from runner.train.identity import versions
from runner.train.record import ENDED, Verdict, open_run, recorded
from runner.train.report import Outcome, record_result, show_result
from runner.train.samples import Samples, asking

logger = logging.getLogger(__name__)

Verify = Callable[[Mapping[str, object], VerifyConfig, Path], Verdict]

_CHECKPOINTS = "runner.checkpoints"
_ORIGIN = "runner.branched_from"
_SUMMARY = "model_summary.txt"


def run(
    config: RunConfig,
    composed: DictConfig,
    verify: Verify,
    given: Sequence[Any] = (),
    validates: bool = True,
    ended: Callable[[Engine, OptimizerConfig, int], None] = lambda *_: None,
    how_to_continue: str = "",
) -> None:
    """Trains, evaluates and records; the run is locked against other processes until this returns.

    Cheap checks come before slow ones. Whatever can make the config invalid is known before the tracked run is opened,
    which would be recorded as one that failed. And what a person reads comes in the order in which it is decided.

    Args:
      composed: the same as Hydra composed it, for the record.
      verify: verifies it first where `trainer.verify_first` is set.
      given: callbacks beside those of `trainer.callbacks`.
      validates: give callbacks the evaluations, as `val_loss` and so on.
      ended: takes the engine that has been trained, its optimizer's config and the number of its steps.
      how_to_continue: line that says how to continue a run that has ended early; empty: the command that does.

    Raises:
      Interrupted: a signal ended the run, which is recorded as KILLED.
      DataError, EngineError, TrackingError, ConfigError: the run failed, in one line; it is recorded as FAILED.
    """
    console = Console()
    team = current()
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(composed, config.mesh, config.tracking.uri)
    saved_run: SavedRun | None = None
    to_continue: SavedRun | None = None

    def say(line: str) -> None:
        if line:
            console.print(line, soft_wrap=True, markup=False)

    def warn(warning: str) -> None:
        say(f"warning: {warning}")
        logger.warning("%s", warning)

    with ExitStack() as until_exit:
        # ------------------------------------------------------------------ the run that this one continues
        previous = resume.open_previous(config, content, until_exit)
        checkpoint = None
        start = 0
        if previous is not None:
            checkpoint = previous.checkpoint
            start = checkpoint.step
        for line in devices.device_lines(config, composed):
            say(line)
        if membership() is None:  # a sweep's table has what its jobs vary
            say(lines.config_line(as_typed(HydraConfig.get().overrides.task), folder))
            # A custom step has optimizers of its own, which only its code knows, and a compiled model may have one.
            if not (task_registry.entry(config.task).own_step or task_registry.entry(config.task).of_model):
                say(lines.optimizer_line(config.optimizer))
        yaml_text = OmegaConf.to_yaml(OmegaConf.create(content))
        if team.is_first:
            logger.info("the config:\n%s", yaml_text)
        for warning in warnings.of_config(config.mesh, config.cluster):
            warn(warning)
        if previous is not None:
            say(previous.describe_other_checkpoints())

        stop = signals.current()
        # ------------------------------------------------------------------ data, task and length
        registry.prepare(config)
        called: list[listeners.Listener] = []
        if team.is_first:  # it alone calls them, so the others need not even make them
            called = listeners.make(config.trainer.callbacks, given)
        seed = config.trainer.seed
        data, task = _data_and_task(config.dataset, config.task, seed, previous)
        spec = DataSpec(task.arrays, task)
        optimizer = registry.optimizer_of(config.engine.name, config.model, config.optimizer, seed, spec)
        if task.of_model:
            say(f"{lines.optimizer_line(optimizer)}; loss and metrics are of the model's compile (task=compiled)")
        trainer = with_metrics(config.trainer, task.directions, task.step_metrics)
        optimizer = with_plateau_metric(optimizer, trainer, task.directions, task.step_metrics)
        config = replace(config, trainer=trainer, optimizer=optimizer)
        length = lengths.run_length(config, data.train.size, task.tokens)
        # A named run that died before its first checkpoint is continued in the tracking store.
        continued = None
        if previous is not None:
            resume.check_unfinished(previous, length, task)
            if not previous.branches:
                continued = previous.run
            say(previous.describe_position(length))
        elif config.name is not None:
            continued = runs.begun(folder_of(trainer.checkpoint.folder) / config.name)

        def built() -> tuple[Engine, Plan | None, feed.Splits]:
            """Builds the engine, and prints the warnings that need it; records nothing."""
            engine, plan = _engine(config, data, spec, previous, folder, say)
            splits = feed.splits(config.dataset, trainer, data, task, readers, engine)
            found = [] if plan is None else list(plan.warnings)
            found += _tried_warnings(config.dataset, trainer, config.task, engine, splits)
            if not task.own_step:
                found += warnings.of_rates(optimizer, length.total)
            for warning in found:
                warn(warning)
            for line in lines.data_lines(trainer, config.dataset, splits, data, length):
                say(line)
            return engine, plan, splits

        with workers.Workers(config.dataset) as readers, ExitStack() as until_recorded:
            # ------------------------------------------------------------------ verification, engine and plan
            continues = previous is not None or (continued is not None and bool(continued.tracking_id))
            verdict = ready = failure = None
            try:
                with limits.explained(config.mesh):
                    if trainer.verify_first:
                        verdict = verify(asdict(config), config.verify, folder)
                    if verdict is None or not verdict.failure:
                        ready = built()
            except Exception as error:
                # A rejected resume leaves the record as it was, and an invalid model, task or layout gets none. Any
                # other new run that fails here is to have one, unless other processes wait for this one meanwhile.
                if continues or isinstance(error, ConfigError) or team.count > 1:
                    raise
                failure = error
            if continues and verdict is not None and verdict.failure:
                verdict.record(folder, Tracker(), console)  # shown, and raised

            # ------------------------------------------------------------------ the record
            with required(folder):
                (folder / "config.yaml").write_text(yaml_text)
            opening = partial(open_run, config, content, invocation.command("runner"), continued=continued)
            tracker = until_recorded.enter_context(recorded(_tracker(opening), console))
            until_recorded.enter_context(limits.explained(config.mesh))

            if previous is not None and not previous.branches:
                to_continue = previous.run

            def print_how_to_continue(kind: type[BaseException] | None, *_: object) -> None:
                """Prints the command that continues the run, as its last line, if an exception ends it."""
                # A sweep prints one command for all its jobs.
                if kind is not None and to_continue and team.is_first and membership() is None:
                    command = lines.continuing_line(to_continue.folder, config.cluster, config.name)
                    say(command and (how_to_continue or command))

            until_exit.push(print_how_to_continue)
            journal = None
            begin = partial(
                attempts.begin,
                trainer.checkpoint, config.name, mesh.describe(config.mesh.axes),
                tracker, folder, previous, until_exit,
            )  # fmt: skip
            if config.name is not None:
                # At once: another machine, to which the lock may not reach, is to see that this one has the run.
                saved_run, journal = begin()
                to_continue = saved_run
            # Without a checkpoint a run trains all its steps again, those that an earlier attempt has logged too.
            points = NewPoints(
                tracker,
                continues=checkpoint is not None or config.name is not None,
                repeats_steps=previous is None or previous.repeats_steps,
            )
            _log_inputs(tracker, data, folder)
            tracker.watch_machine()

            if failure is not None:
                raise failure
            if verdict is not None:
                verdict.record(folder, tracker, console)
            assert ready is not None
            engine, plan, splits = ready
            if team.is_first:
                with spared(str(folder / _SUMMARY)):
                    (folder / _SUMMARY).write_text(engine.summary(), "utf-8")
                    tracker.log_artifact(folder / _SUMMARY)
            measures: Mapping[str, float] = {}
            if plan is not None:
                with quiet_native_log(folder / "runner.log"):
                    for path in write_files(plan, folder):
                        tracker.log_artifact(path)
                measures = plan.metrics()
                tracker.set_tags({"runner.plan": rows.in_a_line(plan), **figure_tags(measures)})

            # ------------------------------------------------------------------ checkpoints
            saver = Saver()
            if trainer.checkpoint.enabled:
                if saved_run is None:
                    saved_run, journal = begin()
                    to_continue = saved_run
                tags = {_CHECKPOINTS: str(saved_run.folder)}
                if previous is not None and previous.branches:
                    tags[_ORIGIN] = f"{previous.run.id}@{start}"
                tracker.set_tags(tags)
                about = {
                    "run": saved_run.id,
                    # `runs` takes it if the file of the record is lost.
                    runs.IN_CHECKPOINTS: dict(saved_run.record),
                    "config": content,
                    "seed": trainer.seed,
                    "versions": versions(),
                    manifest.DIGEST: data.digest,
                    manifest.ENCODING: data.encoding.to_json(),
                    manifest.CONSTANTS: dict(task.constants),
                }
                take = take_state(engine, about)
                goal = stopping.objective(trainer.checkpoint.best, task.directions)
                saver = Saver(trainer.checkpoint, saved_run.folder, take, warn_of_disk, start, goal, team)

            # ------------------------------------------------------------------ training
            def notify(line: str, tags: Mapping[str, str]) -> None:
                say(line)
                tracker.set_tags(tags)

            end_together = partial(team.raise_if_requested, stop)
            profiler = profile.Profiler(trainer.profile, engine.trace, folder)
            asked = asking(engine, end_together)
            samples = Samples(asked, trainer.seed, task, folder, tracker.log_artifact)
            hooks = loop.LoopHooks(
                log=points.log,
                notify=notify,
                display=Display(trainer.progress if team.is_first else "none", console, splits.selecting_name),
                stop=end_together,
                saver=saver,
                profiler=profiler,
                evaluated=samples.take,
                callbacks=Callbacks(called, trainer.log_every_steps, validates=validates),
            )
            if journal is not None:
                hooks = replace(hooks, stepped=journal.update)
            with stop.deferring():  # the loop asks for a signal between device calls
                result = loop.train(config, engine, splits, hooks, checkpoint)

            # ------------------------------------------------------------------ report
            stop.raise_if_requested()
            ended(engine, optimizer, result.steps)
            if result.steps < length.total:
                say(result.ended)
            speed = {"throughput/input_wait": result.meter.input_wait}
            peak = tokens.peak_gflops(config.plan, mesh.device_kind(config.mesh), config.engine.precision)
            mfu = None
            if result.meter.rate:
                plan_config = replace(config.plan, gflops=peak)
                flops = model_flops(config.model, config.dataset.batch_size, engine, task)
                counted = measures
                if flops:
                    counted = {**measures, "plan/flops_per_device": flops / mesh.size(config.mesh.axes)}
                mfu = utilization(plan_config, counted, result.meter.rate)
            if mfu is not None:
                speed["throughput/model_flop_utilization"] = mfu
            tracker.set_tags({ENDED: result.ended, **figure_tags(speed)})
            if journal is not None and len(journal.attempts()) > 1:
                tracker.set_tags({attempts.TAG: attempts.causes(journal.attempts())})
            outcome = Outcome(config, engine, splits, result, length, measures, mfu, data.encoding)
            if result.unsaved is not None:
                tracker.set_tags({loop.UNSAVED: result.unsaved})
            with stages.stage("writing the results"):
                record_result(outcome, tracker, folder)
            for path in sorted(profiler.folder.rglob("*")):
                if path.is_file():
                    tracker.log_artifact(path, path.parent.relative_to(folder).as_posix())
                    say(f"trace: {path}")
            if trainer.profile.start is not None and not profiler.folder.exists():
                # An earlier attempt of the run may have traced it.
                warn(f"trainer.profile.start={trainer.profile.start}: no step of this attempt, so it has no trace")
            show_result(outcome, console)
            for line in samples.lines(result.taken):
                say(line)
            # Only now, when as much of the results as possible is recorded.
            if result.unsaved is not None:
                team.finish()  # process 0 has more to record than the others
                raise UnsavedError(result.unsaved)


def _data_and_task(
    dataset: DatasetConfig, config: TaskConfig, seed: int, previous: Previous | None
) -> tuple[Dataset, Task]:
    """Loads the data and makes the task, both as they were in the run that this one continues."""
    encoding = constants = None
    if previous is not None:
        encoding = previous.encoding
        constants = previous.constants
    data = loading.load(dataset, seed, encoding, config)
    current().agree("the data's SHA-256", data.digest)
    task = make_task(config, data.specs, data.train, constants, data.vocabulary)
    for split, source in (("validation", data.validation), ("test", data.test)):
        if source is not None:
            task.check_split(source, split)
    if previous is not None and not previous.branches:
        resume.check_data(previous.checkpoint, data.digest)
    return data, task


def _engine(
    config: RunConfig,
    data: Dataset,
    spec: DataSpec,
    previous: Previous | None,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Engine, Plan | None]:
    """Returns the engine with the state that the run begins with, its step compiled, and the plan if there is one."""
    length = lengths.run_length(config, data.train.size, spec.task.tokens)
    optimizer = transformation.with_epoch(config.optimizer, length.epoch)
    with quiet_native_log(folder / "runner.log"):
        unpadded = lengths.without_padding(config.dataset, config.trainer, data.train.size)
        engine = make_engine(replace(config, dataset=unpadded, optimizer=optimizer), spec, length.total)
        engine.build()
        say(spec.task.scaling_line)
        engine.cache_on_device(data.train)
        if previous is not None:
            resume.load(engine, previous.checkpoint)
        # Compiled for the loop's calls, so that the plan costs no second compilation.
        calls = feed.steps_per_call(config.dataset, config.trainer, spec.arrays, data.train.size, cached=engine.caches)
        compile_step(engine, spec, config.dataset.batch_size, calls.capacity)
        plan = None
        if current().is_first:
            try:
                plan = make_plan(config, engine, spec, invocation.choices(), length.total)
            except EngineError as error:  # training needs no plan
                logger.warning("no plan: %s", error)
    return engine, plan


def _tried_warnings(
    dataset: DatasetConfig, trainer: TrainerConfig, config: TaskConfig, engine: Engine, splits: feed.Splits
) -> list[str]:
    """Returns the warnings of what the task's functions and the model do with a batch."""
    with stages.stage("compiling the evaluation"):
        found = feed.check_rows(dataset, trainer, config, engine, splits.train)
        # One batch of an evaluation, as the loop makes them: the loop compiles nothing more for it.
        batches = feed.evaluation_of(dataset, config, engine, splits.selecting, 1)
        evaluation = engine.evaluate(batches, keep_outputs=True)
    return found + splits.train.task.warnings(evaluation)


def model_flops(model: ModelConfig, batch_size: int, engine: Engine, task: Task) -> float:
    """Returns the operations of a language model's step as its parameters count them; 0 for another task."""
    units = task.outputs.units
    if not task.tokens or units is None:
        return 0.0
    shapes = {path: placement.shape for path, placement in engine.placements.items()}
    used_experts = gpt_options.used_experts(model)
    return tokens.step_flops(shapes, set(engine.trainable), batch_size * task.tokens, task.tokens, units, used_experts)


def _log_inputs(tracker: Tracker, data: Dataset, folder: Path) -> None:
    """Records the config, the tokenizer and the data that the run reads."""
    tracker.log_artifact(folder / "config.yaml")
    if current().is_first and data.vocabulary is not None and data.vocabulary.tokenizer:
        with required(folder):
            (folder / TOKENIZER).write_text(data.vocabulary.tokenizer_json(), "utf-8")
        tracker.log_artifact(folder / TOKENIZER)
    tracker.set_tags({"runner.data": f"{data.name}, SHA-256 {data.digest}, {data.source}"})


def _tracker(opening: Callable[[], Tracker]) -> Tracker:
    """Returns the tracker of process 0, and for the others one that records nothing and has the same run id."""
    trackers: list[Tracker] = []

    def open_on_first() -> str | None:
        trackers.append(opening())
        return trackers[0].run_id

    tracked_id = current().broadcast("the tracked run", open_on_first)
    if trackers:
        return trackers[0]
    tracker = Tracker()
    tracker.run_id = tracked_id
    return tracker
