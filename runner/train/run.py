"""One training run from a checked config: data, task, tracker, engine, loop and report, in this order."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.checkpoint import (
    named,
    recovery,
    resume,
    runs,
    stopping,
)
from runner.checkpoint.arguments import folder_of
from runner.checkpoint.attempts import Journal
from runner.checkpoint.resume import (
    Previous,
    check_data,
    load,
)
from runner.cluster.lifecycle import (
    AgreedStop,
    finish_together,
)
from runner.cluster.team import current
from runner.config import typed
from runner.config.convert import resolved
from runner.config.differences import differences
from runner.config.schema import CheckpointConfig, ClusterConfig, RunConfig
from runner.data import loading, workers
from runner.data.base import Dataset
from runner.data.vocabulary import TOKENIZER
from runner.engine import devices, lengths, make_engine, registry
from runner.engine.base import Engine, cache_on_device, caches_split
from runner.engine.lengths import RunLength
from runner.errors import ConfigError, EngineError, UnsavedError
from runner.host import folders, paths, session, stages, work
from runner.host.console import Console
from runner.host.logs import quiet_native_log
from runner.host.outputs import required, spared
from runner.host.paths import shown
from runner.host.signals import StopRequest, heard
from runner.host.stores.urls import Place
from runner.layout import mesh
from runner.model import gpt_options, windows
from runner.plan import exhausted, rows, tokens
from runner.plan.checks import warnings
from runner.plan.checks.trainer import (
    with_metrics,
    with_plateau_metric,
)
from runner.plan.command import compile_step, plan_engine
from runner.plan.files import write_files
from runner.plan.rates import utilization
from runner.task import registry as task_registry
from runner.task.base import DataSpec, Task
from runner.task.registry import make_task
from runner.tracking import Tracker, member
from runner.train import (
    feed,
    goodput,
    lines,
    loop,
    padded,
    profile,
)
from runner.train.display import (
    Display,
    make_display,
)
from runner.train.goodput import Goodput
from runner.train.record import (
    ENDED,
    Verdict,
    open_run,
    recorded,
)
from runner.train.report import (
    Outcome,
    record_result,
    show_result,
)
from runner.train.samples import Samples

logger = logging.getLogger(__name__)

Verify = Callable[[RunConfig, Dataset, Path], Verdict]


def run(config: RunConfig, composed: DictConfig, verify: Verify) -> None:
    """Trains, evaluates and records; the run is locked against other processes until this returns.

    Args:
      config: checked.
      composed: the same as Hydra composed it, for the record.
      verify: verifies it first where `trainer.verify_first` is set.

    Raises:
      Interrupted: a signal ended the run, which is recorded as KILLED.
      DataError, EngineError, TrackingError, ConfigError: the run failed, in one line; it is recorded as FAILED.
    """
    with ExitStack() as until_exit:
        _run(config, composed, verify, until_exit)


def _run(config: RunConfig, composed: DictConfig, verify: Verify, until_exit: ExitStack) -> None:
    """Runs it; the order of a run's start is that of this function.

    Cheap checks come before slow ones. Whatever can make the config invalid is known before the tracked run is opened,
    which would be recorded as one that failed. And what a person reads comes in the order in which it is decided.
    """
    work.begin_run()
    console = Console()
    team = current()
    folder = Path(HydraConfig.get().runtime.output_dir)
    content = resolved(config, composed)
    previous = resume.open_previous(config, content, until_exit)
    resume.check_experiment(config, previous)
    _print_config(console, config, composed, content, folder)
    yaml_text = OmegaConf.to_yaml(OmegaConf.create(content))
    if team.is_first:
        logger.info("the config:\n%s", yaml_text)
    for warning in warnings.of_config(config):
        _warn(console, warning)
    if previous is not None:
        for line in previous.describe_other_checkpoints():
            _print(console, line)
    with heard() as stop:
        registry.prepare(config)
        data, task = _data_and_task(config, previous)
        trainer = with_metrics(config.trainer, task.directions, task.step_metrics)
        optimizer = with_plateau_metric(config.optimizer, trainer, task.directions, task.step_metrics)
        config = replace(config, trainer=trainer, optimizer=optimizer)
        length = lengths.run_length(config, data.train.size, task.tokens)
        lengths.check_memory(config, data.train, length.total)
        resume.check_unfinished(config, previous, length, task)
        run_id = named.tracked_id(config)
        if previous is not None:
            run_id = previous.resumed_run_id
            _print(console, previous.describe_position(length))
        profile.check(config.trainer, length)
        command = typed.command("runner")
        # Closed after the tracker has finished: a run that is killed before that can be resumed, to record the rest.
        after_tracking = ExitStack()
        with workers.opened(config.dataset, config.trainer.seed) as readers, ExitStack() as until_recorded:
            attempt = exhausted.Attempt(config, DataSpec(task.arrays, task), list(HydraConfig.get().overrides.task))
            training = _Training(
                config, content, data, task, length, folder, console, Tracker(), previous, attempt, verify
            )
            ready = verdict = None
            if previous is not None or run_id is not None:
                # A rejected resume leaves the record as it was, and a verification or an engine may reject it. A new
                # run that fails here is to have a record.
                with exhausted.explained(attempt):
                    verdict = training.verdict()
                    if verdict is not None and verdict.failure:
                        verdict.record(content, folder, Tracker(), console)  # shown, and raised
                    ready = training.ready(readers)
            with required(folder):
                (folder / "config.yaml").write_text(yaml_text)
            tracker = until_recorded.enter_context(recorded(_tracker(config, content, command, run_id), console))
            if team.is_first:
                with spared(str(folder / folders.MARK)):
                    folders.note_run(folder, tracker.run_id or folder.name)
            with exhausted.explained(attempt):
                replace(training, tracker=tracker).run(readers, stop, until_exit, after_tracking, verdict, ready)
        after_tracking.close()


def _data_and_task(config: RunConfig, previous: Previous | None) -> tuple[Dataset, Task]:
    """Loads the data and makes the task, both as they were in the run that this one continues.

    Raises:
      ConfigError: the data does not fit the task, or is not that of the previous run.
      DataError: the data can't be loaded.
    """
    encoding = None
    constants = None
    if previous is not None:
        encoding = previous.encoding
        constants = previous.constants
    data = loading.load_run(config, encoding)
    current().agree("the data's SHA-256", data.digest)
    task = make_task(config.task, data.specs, data.train, constants, data.vocabulary)
    for split, source in (("validation", data.validation), ("test", data.test)):
        if source is not None:
            task.check_split(source, split)
    if previous is not None and not previous.branches:
        check_data(previous.checkpoint, data.digest)
    return data, task


@dataclass(frozen=True)
class _Training:
    """A run whose data is loaded; its record is open when `run` is called."""

    config: RunConfig
    content: Mapping[str, object]
    data: Dataset
    task: Task
    length: RunLength
    folder: Path
    console: Console
    tracker: Tracker
    previous: Previous | None
    attempt: exhausted.Attempt
    verify: Verify

    def verdict(self) -> Verdict | None:
        """Verifies the run before the engine has the devices; None: it does not verify first; raises ConfigError."""
        if not self.config.trainer.verify_first:
            return None
        return self.verify(self.config, self.data, self.folder)

    def ready(self, readers: workers.Workers) -> tuple[Engine, feed.Splits]:
        """Builds the engine, and prints the warnings that need it; records nothing; raises ConfigError."""
        engine = self._engine()
        splits = feed.splits(self.config, self.data, self.task, readers, cached=caches_split(engine))
        self._print_warnings(engine, splits)
        return engine, splits

    def run(
        self,
        readers: workers.Workers,
        stop: StopRequest,
        until_exit: ExitStack,
        after_tracking: ExitStack,
        verdict: Verdict | None,
        ready: tuple[Engine, feed.Splits] | None,
    ) -> None:
        """Trains and reports.

        Args:
          readers: worker processes of the data.
          stop: notes signals.
          until_exit: gets the lock on the run's checkpoints, and prints the command that continues it.
          after_tracking: is closed when the tracker has the run as finished.
          verdict: what `verdict` has returned; None: it was not called.
          ready: what `ready` has returned; None: it was not called.
        """
        config = self.config
        tracker = self.tracker
        previous = self.previous
        checkpoint = None
        repeats_steps = False
        resumed_folder = None
        if previous is not None:
            checkpoint = previous.checkpoint
            repeats_steps = previous.repeats_steps
            if not previous.branches:
                resumed_folder = previous.run.folder
        begun = None
        if config.name is not None:
            # At once: another machine, to which the lock may not reach, is to see that this process has the run.
            begun = recovery.begin_attempt(config, tracker, self.folder, previous, until_exit)
            resumed_folder = begun.run.folder
        points = recovery.NewPoints(tracker, checkpoint, repeats_steps=repeats_steps, continues=begun is not None)
        until_exit.push(partial(self._print_how_to_continue, resumed_folder))
        self._log_inputs()
        tracker.watch_machine()
        verdict = verdict or self.verdict()
        if verdict is not None:
            verdict.record(self.content, self.folder, tracker, self.console)
        engine, splits = self.ready(readers) if ready is None else ready
        measures = self._record_plan()
        points.log_changed(checkpoint.step if checkpoint else 0, measures, self.content)
        goal = stopping.objective(config.trainer.checkpoint.best, self.task.directions)
        with recovery.saving(
            config, self.content, engine, tracker, self.folder, previous, after_tracking, until_exit,
            goal=goal, data=self.data, constants=self.task.constants, begun=begun,
        ) as (saver, journal):  # fmt: skip
            if saver.folder != resumed_folder:
                until_exit.push(partial(self._print_how_to_continue, saver.folder))
            display = self._display(splits)
            profiler = profile.Profiler(config.trainer.profile, engine.trace, self.folder)
            log = member.reporting(points.log, self.folder)
            agreed_stop = AgreedStop(stop)
            samples = Samples(config, engine, self.task, self.folder, tracker.log_artifact)
            hooks = loop.LoopHooks(
                log,
                points.forget,
                self._notify,
                display,
                agreed_stop,
                saver,
                profiler,
                partial(samples.take, before=agreed_stop.raise_if_requested),
                journal,
            )
            with stop.deferring():  # the loop asks for a signal between device calls
                result = loop.train(config, engine, splits, hooks, checkpoint)
            work.clock().become(work.REPORT)
            stop.raise_if_requested()
            if result.steps < self.length.total:
                _print(self.console, result.ended)
            tracker.set_tags({ENDED: result.ended})
            outcome = self._outcome(engine, splits, result, measures, points)
            outcome = replace(outcome, goodput=self._goodput(journal, points, result.steps))
            tracker.page.results |= outcome.results
            with _unsaved(result, tracker):
                with stages.stage("writing the results"):
                    record_result(outcome, tracker, self.folder)
                self._record_profile(profiler.folder)
                show_result(outcome, self.console)
                self._print_goodput(outcome.goodput)
                for line in samples.lines(result.taken):
                    _print(self.console, line)

    def _display(self, splits: feed.Splits) -> Display:
        """Returns what shows the run's progress; process 0 alone shows it."""
        progress = self.config.trainer.progress if current().is_first else "none"
        return make_display(progress, self.console, splits.selecting_name)

    def _outcome(
        self,
        engine: Engine,
        splits: feed.Splits,
        result: loop.Result,
        measures: Mapping[str, float],
        points: recovery.NewPoints,
    ) -> Outcome:
        """Returns what the report is of, and logs how fast training was."""
        config = self.config
        peak_gflops = tokens.peak_gflops(config)
        speed = {"throughput/input_wait": result.meter.input_wait}
        mfu = None
        rate = result.meter.steps_per_second
        if result.meter.is_meaningful and rate:
            counted = self._counted(engine, measures)
            mfu = utilization(replace(config.plan, gflops=peak_gflops), counted, rate)
        if mfu is not None:
            speed["throughput/model_flop_utilization"] = mfu
        points.log(result.steps, speed)
        return Outcome(config, engine, splits, result, mfu, peak_gflops, encoding=self.data.encoding)

    def _goodput(self, journal: Journal, points: recovery.NewPoints, step: int) -> Goodput | None:
        """Returns the goodput of the run up to now, and logs it; None if the run records no attempts."""
        attempts = journal.attempts()
        if not attempts:
            return None
        measured = goodput.of(attempts)
        points.log(step, measured.metrics())
        if len(attempts) > 1:
            self.tracker.set_tags({goodput.TAG: goodput.causes(measured)})
        return measured

    def _print_goodput(self, measured: Goodput | None) -> None:
        if measured is None:
            return
        every_minutes = self.config.trainer.checkpoint.every_minutes
        line = goodput.line(measured, every_minutes, work.clock().mean(work.SAVE))
        if line is not None:
            _print(self.console, line)

    def _counted(self, engine: Engine, measures: Mapping[str, float]) -> Mapping[str, float]:
        """Returns the plan's measures, with a language model's operations as its parameters count them."""
        task = self.task
        units = task.outputs.units
        if not task.tokens or units is None:
            return measures
        shapes = {path: placement.shape for path, placement in engine.placements.items()}
        tokens_per_batch = self.config.dataset.batch_size * task.tokens
        model = self.config.model
        attended = gpt_options.attention_shares(model, task.tokens).get(windows.SCANNED, 1.0)
        used_experts = gpt_options.used_experts(model)
        flops = tokens.step_flops(
            shapes, set(engine.trainable), tokens_per_batch, task.tokens, units, attended, used_experts
        )
        return {**measures, "plan/flops_per_device": flops / mesh.size(self.config.mesh.axes)}

    def _engine(self) -> Engine:
        """Returns the engine with the state that the run begins with, its step compiled and planned."""
        config = self.config
        spec = DataSpec(self.task.arrays, self.task)
        with quiet_native_log(self.folder / "runner.log"):
            engine = make_engine(lengths.without_padding(config, self.data.train.size), spec, self.length.total)
            engine.build()
            if self.task.scaling_line:
                _print(self.console, self.task.scaling_line)
            cache_on_device(engine, self.data.train)
            if self.previous is not None:
                load(engine, self.previous.checkpoint)
            # Compiled for the loop's calls, so that the plan costs no second compilation.
            calls = feed.steps_per_call(config, spec.arrays, self.data.train.size, cached=caches_split(engine))
            compile_step(engine, spec, config.dataset.batch_size, calls.capacity)
            if current().is_first:
                try:
                    self.attempt.plan = plan_engine(config, engine, spec, self.length.total)
                except EngineError as error:  # training needs no plan
                    logger.warning("no plan: %s", error)
        return engine

    def _record_plan(self) -> Mapping[str, float]:
        """Writes and records the files of the plan, and returns its measures; none if there is no plan."""
        plan = self.attempt.plan
        if plan is None:
            return {}
        with quiet_native_log(self.folder / "runner.log"):
            for path in write_files(plan, self.folder):
                self.tracker.log_artifact(path)
        self.tracker.page.facts["plan"] = rows.in_a_line(plan)
        self.tracker.show_page()
        return plan.metrics()

    def _print_warnings(self, engine: Engine, splits: feed.Splits) -> None:
        """Prints the warnings that need the model's outputs, and which examples are used for what."""
        config = self.config
        for warning in self.attempt.plan.warnings if self.attempt.plan else ():
            _warn(self.console, warning)
        with stages.stage("compiling the evaluation"), work.clock().doing(work.COMPILE):
            loss_warnings = padded.check(config, engine, splits.train)
            # One batch of an evaluation, as the loop makes them: the loop compiles nothing more for it.
            batches = feed.evaluation_of(config, engine, splits.selecting, 1)
            evaluation = engine.evaluate(batches, keep_outputs=True)
        rate_warnings: list[str] = []
        if not self.task.own_step:
            rate_warnings = warnings.of_rates(config.optimizer, self.length.total)
        output_warnings = self.task.warnings(evaluation.outputs)
        if evaluation.named_outputs:
            output_warnings = self.task.named_warnings(evaluation.named_outputs)
        for warning in loss_warnings + rate_warnings + output_warnings:
            _warn(self.console, warning)
        printed = (
            lines.length_line(self.length),
            lines.examples_line(config, splits, self.length),
            lines.packing_line(config.dataset, self.data),
            lines.selection_line(config.trainer, splits, self.data),
        )
        for line in printed:
            if line:
                _print(self.console, line)

    def _notify(self, line: str, tags: Mapping[str, str]) -> None:
        _print(self.console, line)
        self.tracker.set_tags(tags)

    def _print_how_to_continue(self, saved: Place | None, kind: type[BaseException] | None, *_: object) -> None:
        """Prints the command that continues a run which an exception ended, as its last line.

        Args:
          saved: folder of its checkpoints; None: nothing is saved.
          kind: of the exception; None: the run ended well.
        """
        is_of_a_sweep = member.membership() is not None  # which prints one command for all its jobs
        if kind is None or saved is None or not current().is_first or is_of_a_sweep:
            return
        line = continuing_line(saved, self.config.cluster, self.config.name)
        if line is not None:
            _print(self.console, line)

    def _log_inputs(self) -> None:
        """Records the config, the tokenizer and the splits that the run reads."""
        self.tracker.log_artifact(self.folder / "config.yaml")
        data = self.data
        if current().is_first and data.vocabulary is not None and data.vocabulary.tokenizer:
            with required(self.folder):
                (self.folder / TOKENIZER).write_text(data.vocabulary.tokenizer_json(), "utf-8")
            self.tracker.log_artifact(self.folder / TOKENIZER)
        contexts = ["train"]
        if self.config.trainer.overfit_batches is None:
            contexts += ["eval"] if data.validation is None else ["validation", "test"]
        for context in contexts:
            self.tracker.log_dataset(f"{data.name} {context}", data.digest, data.source, context)

    def _record_profile(self, folder: Path) -> None:
        """Records the trace of a few steps, if one was made."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.tracker.log_artifact(path, path.parent.relative_to(folder.parent).as_posix())
                _print(self.console, f"trace: {path}")


def _tracker(config: RunConfig, content: Mapping[str, object], command: str, run_id: str | None) -> Tracker:
    """Returns the tracker of process 0, and for the others one that records nothing and has the same run id."""
    team = current()
    trackers: list[Tracker] = []

    def open_on_first() -> str | None:
        trackers.append(open_run(config, content, command, resume_run_id=run_id))
        return trackers[0].run_id

    tracked_id = team.broadcast("the tracked run", open_on_first)
    if trackers:
        return trackers[0]
    tracker = Tracker()
    tracker.run_id = tracked_id
    return tracker


@contextmanager
def _unsaved(result: loop.Result, tracker: Tracker) -> Iterator[None]:
    """Fails a run whose state could not be saved, after as much of its results as possible is recorded.

    Raises:
      UnsavedError: the state could not be saved.
    """
    if result.unsaved is None:
        yield
        return
    tracker.set_tags({loop.UNSAVED: result.unsaved})
    try:
        yield
    except OSError as error:  # the disk is full, or one that the results are on
        logger.exception("results are not recorded")
        raise UnsavedError(f"{result.unsaved}; not all of its results are recorded ({error})") from error
    finish_together()  # process 0 has more to record than the others
    raise UnsavedError(result.unsaved)


def _print_config(
    console: Console, config: RunConfig, composed: DictConfig, content: Mapping[str, object], folder: Path
) -> None:
    """Prints the devices, how the config differs from the defaults, and the optimizer."""
    for line in devices.device_lines(config, composed):
        _print(console, line)
    if member.membership() is not None:  # a sweep's table has what its jobs vary
        return
    changed = differences(composed, content)
    description = "the defaults"
    if changed:
        description = ", ".join([*changed, "else the defaults"])
    _print(console, f"config: {description} ({paths.shown(folder / 'config.yaml')})")
    # A custom step has optimizers of its own, which only its code knows.
    if not task_registry.entry(config.task).own_step:
        _print(console, lines.optimizer_line(config.optimizer))


def _print(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False)


def _warn(console: Console, warning: str) -> None:
    _print(console, f"warning: {warning}")
    logger.warning("%s", warning)


_KEY = "resume"
_LATEST = "latest"
_PROGRAM = "runner"


def continuing_line(folder: Place, cluster: ClusterConfig, name: str | None = None) -> str | None:
    """Returns the line with the command that continues a run.

    Args:
      folder: the folder of the run's checkpoints.
      cluster: the run's; whatever started its processes has to start them again.
      name: of the run, with `resume=auto`; None: it has none.

    Returns:
      The line; None where the run left no checkpoint.
    """
    if name is not None:
        return f"To continue, start the same command again ({_KEY}=auto name={name})"
    default_folder = folder_of(CheckpointConfig())  # where `resume` searches for an id
    try:
        run_id = runs.find(_KEY, str(folder), default_folder)[0].id
    except (ConfigError, OSError):
        return None
    reference = run_id
    if folder.parent != default_folder:
        reference = shown(folder)
    else:
        with suppress(ConfigError):
            if runs.find(_KEY, _LATEST, default_folder)[0].id == run_id:
                reference = _LATEST
    command = f"{entry_point()} {shlex.quote(f'{_KEY}={reference}')}"
    if cluster.name == "explicit":
        return f"To continue, in each process: {command} cluster.index=<its number>"
    if cluster.name == "auto":
        return f"To continue, start it as before (srun, mpirun or similar): {command}"
    return f"To continue: {command}"


def entry_point() -> str:
    """Returns how this process's command is typed: as a module, or as the program that an installation makes."""
    is_console_script = Path(session.current().program).name == _PROGRAM
    return _PROGRAM if is_console_script else f"python -m {_PROGRAM}"
