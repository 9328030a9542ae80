"""One training run from a checked config: data, task, tracker, engine, loop, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.checks import warnings as cautions
from runner.checks.trainer import with_metrics
from runner.config import typed
from runner.config.convert import resolved
from runner.config.differences import differences
from runner.config.schema import OptimizerConfig, RunConfig
from runner.data import loading, workers
from runner.data.base import Dataset
from runner.data.vocabulary import TOKENIZER
from runner.engine import devices, make_engine, registry
from runner.engine.base import Engine, cache_on_device, caches_split
from runner.errors import EngineError, UnsavedError
from runner.host import folders, paths, stages
from runner.host.console import Console
from runner.host.gpus import Gpus
from runner.host.logs import quiet_native_log
from runner.host.outputs import required, spared
from runner.host.signals import StopRequest, heard
from runner.layout import mesh
from runner.plan import rows, tokens
from runner.plan.command import compile_step, plan_engine
from runner.plan.files import write_files
from runner.plan.rates import utilization
from runner.processes import requeue
from runner.processes.begin import AgreedStop, finish_together
from runner.processes.team import current
from runner.record.tracked import ENDED, open_run, recorded
from runner.run import again
from runner.run.report import Outcome, record_result, show_result
from runner.sweep import member
from runner.task.base import DataSpec, Task
from runner.task.registry import make_task
from runner.tracking import Tracker
from runner.training import feed, lengths, loop, padded, profile, stopping
from runner.training.checkpoint import recovery, resume
from runner.training.checkpoint.resume import Previous, check_data, load
from runner.training.display import make_display
from runner.training.samples import Samples
from runner.training.usage import ProcessUsage, Usage
from runner.verify.record import verify_recorded

logger = logging.getLogger(__name__)


def run(config: RunConfig, composed: DictConfig) -> None:
    """Trains, evaluates and records; no other process goes on with the run until this returns.

    Args:
      config: checked.
      composed: the same as Hydra composed it, for the record.

    Raises:
      Interrupted: a signal ended the run, which is recorded as KILLED.
      DataError, EngineError, TrackingError, ConfigError: what failed, in one line; the run is recorded as FAILED.
    """
    with requeue.at_end(wanted=config.cluster.requeue), ExitStack() as held:
        _run(config, composed, held)


def _run(config: RunConfig, composed: DictConfig, held: ExitStack) -> None:
    console = Console()
    team = current()
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(config, composed)
    before = resume.open_previous(config, content, held)
    for line in devices.line(config, composed):
        console.print(line, soft_wrap=True, markup=False)
    whole = OmegaConf.to_yaml(OmegaConf.create(content))
    for line in _config_lines(composed, content, folder):
        console.print(line, soft_wrap=True, markup=False)
    if member.membership() is None:  # a sweep's table names what its jobs vary
        console.print(_optimizer_line(config.optimizer), soft_wrap=True, markup=False)
    with required(folder):
        (folder / "config.yaml").write_text(whole)
    if team.is_first:
        logger.info("the config:\n%s", whole)
    for warning in cautions.of_config(config):
        _warn(console, warning)
    for line in before.describe_other_checkpoints() if before else []:
        console.print(line, soft_wrap=True, markup=False)
    with heard() as stop:
        registry.prepare(config)
        data = loading.load_run(config, before.encoding if before else None)
        team.agree("the data's SHA-256", data.digest)
        constants = before.constants if before else None
        task = make_task(config.task, data.specs, data.train, constants, data.vocabulary)
        for split, source in (("validation", data.validation), ("test", data.test)):
            if source is not None:
                task.check_split(source, split)
        config = replace(config, trainer=with_metrics(config.trainer, task.directions))
        if before is not None and not before.branches:
            check_data(before.checkpoint, data.digest)
        # What can be refused is refused before a run is opened, which would be recorded as one that failed.
        total = lengths.total_steps(config, data.train.size)
        lengths.check_memory(config, data.train)
        resume.check_unfinished(config, before, total, task)
        if before is not None:
            per_epoch = lengths.epoch_steps(config, data.train.size)
            console.print(before.describe_position(per_epoch, config.trainer.epochs), soft_wrap=True, markup=False)
        profile.check(config.trainer, total)
        command = typed.command("runner")
        run_id = before.resumed_run_id if before else None
        finished = ExitStack()
        with (
            workers.opened(config.dataset, config.trainer.seed) as readers,
            recorded(_tracker(config, content, command, run_id), console) as tracker,
        ):
            if team.is_first:
                with spared(str(folder / folders.MARK)):
                    folders.note_run(folder, tracker.run_id or folder.name)
            one = _Run(config, content, data, task, total, folder, console, tracker, before)
            one.train(readers, stop, held, finished)
        finished.close()


@dataclass(frozen=True)
class _Run:
    """A run whose data is loaded and whose record is open."""

    config: RunConfig
    content: Mapping[str, object]
    data: Dataset
    task: Task
    total: int
    folder: Path
    console: Console
    tracker: Tracker
    before: Previous | None

    def train(self, readers: workers.Workers, stop: StopRequest, held: ExitStack, finished: ExitStack) -> None:
        """Trains and reports.

        Args:
          readers: of the data.
          stop: is asked whether a signal came.
          held: is given a lock on the run.
          finished: is to be closed when the tracker has the run as finished.
        """
        config = self.config
        tracker = self.tracker
        before = self.before
        checkpoint = before.checkpoint if before else None
        repeats_steps = before.repeats_steps if before else False
        points = recovery.NewPoints(tracker, checkpoint, repeats_steps=repeats_steps)
        resumed = before.run.folder if before and not before.branches else None
        held.push(partial(self._ended, resumed))
        self._log_inputs()
        if config.trainer.verify_first:
            verify_recorded(config, self.content, self.data, self.folder, tracker, self.console)
        engine, measures = self._engine()
        points.log_changed(checkpoint.step if checkpoint else 0, measures, self.content)
        splits = feed.splits(config, self.data, self.task, readers, cached=caches_split(engine))
        self._say(engine, splits)
        goal = stopping.objective(config.trainer.checkpoint.best, self.task.directions)
        with recovery.saving(
            config, self.content, engine, tracker, self.folder, before, finished, held,
            goal=goal, data=self.data, constants=self.task.constants,
        ) as saver:  # fmt: skip
            if saver.folder != resumed:
                held.push(partial(self._ended, saver.folder))
            progress = config.trainer.progress if current().is_first else "none"
            display = make_display(progress, self.console, config.trainer.epochs, splits.selecting_name)
            profiler = profile.Profiler(config.trainer.profile, engine.trace, self.folder)
            log = member.reporting(points.log, self.folder)
            gpus = Gpus() if mesh.device_kind(config.mesh) == "gpu" else None
            usage = Usage() if config.tracking.name == "none" else ProcessUsage(current(), log, gpus=gpus)
            asked = AgreedStop(stop)
            samples = Samples(config, engine, self.task, self.folder, tracker.log_artifact)
            written = partial(samples.take, before=asked.raise_if_requested)
            hooks = loop.LoopHooks(log, points.forget, self._notify, display, asked, saver, profiler, usage, written)
            with stop.deferring():  # the loop asks between device calls
                result = loop.train(config, engine, splits, hooks, checkpoint)
            stop.raise_if_requested()
            if result.steps < self.total:
                self.console.print(result.ended, soft_wrap=True, markup=False)
            tracker.set_tags({ENDED: result.ended})
            rate = result.meter.steps_per_second if result.meter.is_meaningful else 0.0
            peak = tokens.peak_gflops(config)
            counted = measures if not rate else self._counted(engine, measures)
            used = utilization(replace(config.plan, gflops=peak), counted, rate) if rate else None
            speed = {"throughput/input_wait": result.meter.input_wait}
            points.log(result.steps, speed if used is None else speed | {"throughput/model_flop_utilization": used})
            outcome = Outcome(config, engine, splits, result, used, peak)
            tracker.page.results |= outcome.results
            with _unsaved(result, tracker):
                with stages.stage("writing the results"):
                    record_result(outcome, tracker, self.folder)
                self._record_profile(profiler.folder)
                show_result(outcome, self.console)
                for line in samples.lines(result.taken):
                    self.console.print(line, soft_wrap=True, markup=False)

    def _counted(self, engine: Engine, measures: Mapping[str, float]) -> Mapping[str, float]:
        """Returns the plan's measures; a language model's operations are counted by its parameters."""
        task = self.task
        units = self.task.outputs.units
        if not task.tokens or units is None:
            return measures
        shapes = {path: placement.shape for path, placement in engine.placements.items()}
        count = self.config.dataset.batch_size * task.tokens
        flops = tokens.step_flops(shapes, set(engine.trainable), count, task.tokens, units)
        return {**measures, "plan/flops_per_device": flops / mesh.size(self.config.mesh.axes)}

    def _engine(self) -> tuple[Engine, Mapping[str, float]]:
        """Returns the engine with the state that the run begins with, its step compiled, and the plan's measures."""
        config = self.config
        spec = DataSpec(self.task.arrays, self.task)
        with quiet_native_log(self.folder / "runner.log"):
            engine = make_engine(config, spec, self.total)
            engine.build()
            cache_on_device(engine, self.data.train)
            if self.before is not None:
                load(engine, self.before.checkpoint)
            # Compiled for the loop's calls, so that the plan costs no second compilation.
            chosen = feed.steps_per_call(config, spec.arrays, self.data.train.size, cached=caches_split(engine))
            compile_step(engine, spec, config.dataset.batch_size, chosen.capacity)
            if not current().is_first:
                return engine, {}
            try:
                plan = plan_engine(config, engine, spec)
            except EngineError as error:  # training needs no plan
                logger.warning("no plan: %s", error)
                return engine, {}
            for path in write_files(plan, self.folder):
                self.tracker.log_artifact(path)
        for warning in plan.warnings:
            _warn(self.console, warning)
        self.tracker.page.facts["plan"] = rows.in_a_line(plan)
        self.tracker.show_page()
        return engine, plan.metrics()

    def _say(self, engine: Engine, splits: feed.Splits) -> None:
        """Says what is to be known of a run before it trains."""
        config = self.config
        # One batch of an evaluation: the loop compiles no more for it.
        with stages.stage("compiling the evaluation"):
            padded.check(config, engine, splits.train)
            outputs = engine.evaluate(feed.evaluation_of(config, splits.selecting, 1), keep_outputs=True).outputs
        for warning in cautions.of_rates(config.optimizer, self.total) + self.task.warnings(outputs):
            _warn(self.console, warning)
        for line in (_left_out(config, splits), _selects(config, splits, self.data)):
            if line:
                self.console.print(line, soft_wrap=True, markup=False)

    def _notify(self, line: str, tags: Mapping[str, str]) -> None:
        self.console.print(line, soft_wrap=True, markup=False)
        self.tracker.set_tags(tags)

    def _ended(self, saved: Path | None, kind: type[BaseException] | None, *_: object) -> None:
        """Says what goes on with a run that was broken off, as its last line; a sweep says it of all its jobs."""
        if kind is None or saved is None or not current().is_first or member.membership() is not None:
            return
        if line := again.line(saved, self.config.cluster):
            self.console.print(line, soft_wrap=True, markup=False)

    def _log_inputs(self) -> None:
        self.tracker.log_artifact(self.folder / "config.yaml")
        if current().is_first and self.data.vocabulary is not None and self.data.vocabulary.tokenizer:
            with required(self.folder):
                (self.folder / TOKENIZER).write_text(self.data.vocabulary.tokenizer_json(), "utf-8")
            self.tracker.log_artifact(self.folder / TOKENIZER)
        data = self.data
        contexts = ["train"]
        if self.config.trainer.overfit_batches is None:
            contexts += ["eval"] if data.validation is None else ["validation", "test"]
        for context in contexts:
            self.tracker.log_dataset(f"{data.name} {context}", data.digest, data.source, context)

    def _record_profile(self, folder: Path) -> None:
        """Records the trace of a few steps, where one was made."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.tracker.log_artifact(path, path.parent.relative_to(folder.parent).as_posix())
                self.console.print(f"trace: {path}", soft_wrap=True, markup=False)


def _tracker(config: RunConfig, content: Mapping[str, object], command: str, run_id: str | None) -> Tracker:
    """Returns what records the run: process 0's, and for the others one that records nothing and has its id."""
    team = current()
    made = list[Tracker]()

    def opened() -> str | None:
        made.append(open_run(config, content, command, resume_run_id=run_id))
        return made[0].run_id

    found = team.broadcast("the tracked run", opened)
    if made:
        return made[0]
    tracker = Tracker()
    tracker.run_id = found
    return tracker


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
    finish_together()  # process 0 has more to record than the others
    raise UnsavedError(result.unsaved)


def _config_lines(composed: DictConfig, content: Mapping[str, object], folder: Path) -> list[str]:
    """Says what the config differs from the defaults in, and where all of it is; a sweep says it of its jobs."""
    if member.membership() is not None:
        return []
    found = differences(composed, content)
    whole = paths.shown(folder / "config.yaml")
    return [f"config: {', '.join([*found, 'else the defaults'] if found else ['the defaults'])} ({whole})"]


def _optimizer_line(config: OptimizerConfig) -> str:
    """Returns the line that names the optimizer and its learning rate; the default rate depends on the model."""
    schedule = "" if config.schedule.name == "constant" else f", {config.schedule.name} schedule"
    return f"optimizer: {config.name}, learning rate {config.learning_rate:g}{schedule}"


def _warn(console: Console, warning: str) -> None:
    console.print(f"warning: {warning}", soft_wrap=True, markup=False)


def _left_out(config: RunConfig, splits: feed.Splits) -> str:
    """Says which training examples an epoch does not see; nothing where it sees all."""
    trainer = config.trainer
    size = splits.train.size
    if trainer.overfit_batches is not None:
        return (
            f"trains on the same {splits.selecting.size:,} examples in every epoch, and evaluates on these "
            "(trainer.overfit_batches)"
        )
    left = size % config.dataset.batch_size
    if left and config.dataset.remainder == "drop" and not (trainer.steps_per_epoch or trainer.limit_train_batches):
        return f"each epoch leaves out {left} of {size:,} examples (dataset.remainder=pad counts them)"
    return ""


def _selects(config: RunConfig, splits: feed.Splits, data: Dataset) -> str:
    """Says which data selects what; nothing where nothing is selected."""
    trainer = config.trainer
    what = []
    if trainer.checkpoint.enabled and trainer.checkpoint.best is not None:
        what.append(f"the best checkpoint by {trainer.checkpoint.best}")
    if trainer.early_stopping.metric is not None:
        what.append(f"the end of the run by {trainer.early_stopping.metric}")
    if not what:
        return ""
    split = splits.selecting_name
    told = data.selection.get(split, split)
    of = "" if told == split else f" ({told})"
    line = f"{split}{of}, {splits.selecting.size:,} examples, selects {' and '.join(what)}"
    return (
        line if splits.test is None else f"{line}; test, {splits.test.size:,} examples, is evaluated once at the end"
    )
