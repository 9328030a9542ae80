"""The road of every command: arguments, composed config, checks, folder, and the command itself.

`sys.argv` is read here and in `runner.cli.entry`, and nowhere below (tests/test_house.py).
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from hydra.core.utils import JobStatus, run_job
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.checkpoint import arguments as checkpoint_arguments
from runner.checkpoint.arguments import MULTIRUN, OF_COMPILE
from runner.cli import command_line
from runner.cli.help import completed
from runner.cli.messages import one_line
from runner.cli.prepare import LOG, prepare
from runner.cli.resolvers import register_resolvers
from runner.cli.sweep import settings as sweep_settings
from runner.cluster import lifecycle as processes
from runner.cluster import membership, place, restarts
from runner.cluster.team import ProcessError
from runner.cluster.team import current as current_team
from runner.config import import_path, masking, search_path
from runner.config.compose import application, compose_command, context, each_composed, hydra_main
from runner.config.schema import OptimizerConfig, RunConfig
from runner.config.schema_task import ClassificationOptions, TaskConfig
from runner.config.search_path import NAME_FLAG, PRIMARY
from runner.engine.optim import keras_classes
from runner.engine.registry import ENGINES
from runner.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_REFUSED,
    CompiledError,
    ConfigError,
    DataError,
    EngineError,
    Interrupted,
    NotFiniteError,
    PassingError,
    TrackingError,
    cut,
    in_one_line,
    invalid,
)
from runner.host import secrets, session, stages
from runner.host.late import late
from runner.host.outputs import caused_by_disk
from runner.host.signals import interruption
from runner.host.terminal import Output

logger = logging.getLogger(__name__)

_TO_COMPLETE = "COMP_LINE"  # set by a shell that asks for completions
_FULL_ERROR = "HYDRA_FULL_ERROR"
# What a loader or a system call says without memory; what an engine says is in `runner.plan.exhausted`.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory", "std::bad_alloc", "can't start new thread")
Command = Callable[[RunConfig, DictConfig], None]


def run_here(command: Command, arguments: Sequence[str]) -> None:
    """Runs a command in a program of the user's; raises what ends it."""
    before = sys.argv[:]
    sys.argv[1:] = arguments
    try:
        run_command(command, raises=True)
    finally:
        sys.argv[:] = before


def run_command(command: str | Command, *, raises: bool = False) -> int:
    """Composes the config from the process's command line, checks it and runs a command on it.

    Args:
      command: called with the checked config and the composed one without Hydra's part; or the name of a module whose
        `run` is called, and which is imported once the config has been checked.
      raises: raise an error, and print nothing of it.

    Returns:
      The process's exit code: 0 done, 1 failed, 2 the config is invalid. A signal is raised as Interrupted.
    """
    wants_traceback = os.environ.get(_FULL_ERROR) == "1"
    # Lets errors reach us, in place of Hydra's own printer, which ends the process with its text and exit code 1.
    os.environ[_FULL_ERROR] = "1"
    _find_modules_of_the_user()
    with session.opened(sys.argv[0], sys.argv[1:]) as opened:
        try:
            flags = _read_arguments(opened)
            if not set(command_line.PRINTING_FLAGS).isdisjoint(flags):
                _print_by_hydra()
                return EXIT_DONE
            name = dict(pairwise(flags)).get(NAME_FLAG, PRIMARY)
            with application() as hydra:
                overrides = command_line.split(opened.arguments)[1]
                is_multirun = not set(MULTIRUN).isdisjoint(flags)
                composed = compose_command(hydra, name, overrides, is_multirun=is_multirun)
                Output.is_spared = True
                masking.hide_config(composed)
                if opened.membership is None and place.from_launcher() is None:
                    # Else the sweep, or the process that launched this one, has said it.
                    for line in search_path.replacement_notes(composed):
                        print(f"note: {line}", file=sys.stderr, flush=True)
                if composed.hydra.mode == RunMode.MULTIRUN:
                    settings = sweep_settings.checked(composed)
                    # It imports MLflow, which an error of the config should not wait for.
                    passed = late("runner.cli.sweep.run").run(settings, composed, hydra.config_loader, flags)
                    return EXIT_DONE if passed else EXIT_FAILED
                resumed = checkpoint_arguments.value_of(opened.typed, "sweep.resume")
                if resumed:
                    problem = "continues a sweep, but without -m this is a single run"
                    fix = "type the sweep's whole command with -m"
                    raise invalid("sweep.resume", resumed, problem=problem, fix=fix)
                config, folder = prepare(composed, opened.typed)
                run = late(command).run if isinstance(command, str) else command
                team = current_team()
                stages.speak(wanted=team.is_first and config.trainer.progress != "none")
                # Hydra makes the run's folder, its log and its own files in it, and calls the command: few frames
                # between this one and the command keep a traceback short.
                ended = run_job(
                    task_function=partial(run, config),
                    config=composed,
                    job_dir_key="hydra.run.dir",
                    job_subdir_key=None,
                    hydra_context=context(hydra, composed),
                )
                if ended.status != JobStatus.FAILED:
                    return EXIT_DONE
                # The property `return_value` would print the error before it raises it.
                error = ended._return_value
                # Processes that have met can't meet again.
                can_restart = ENGINES[config.engine.name].full and team.count == 1
                takes_compile = can_restart and _are_defaults(config.task, config.optimizer)
                if not (isinstance(error, CompiledError) and takes_compile):
                    _raise(error, folder / LOG)
        except Exception as error:
            if raises or interruption(error) is not None or isinstance(error, BrokenPipeError):
                raise
            return _report(error, opened.arguments, with_traceback=wants_traceback)
    print(f"note: the model is compiled, so {OF_COMPILE} takes its optimizer, loss and metrics", flush=True)
    sys.argv.append(OF_COMPILE)
    os.environ[_FULL_ERROR] = str(int(wants_traceback))
    return run_command(command, raises=raises)


def _are_defaults(task: TaskConfig, optimizer: OptimizerConfig) -> bool:
    """Returns whether loss and optimizer are the defaults, which give way to those of a compiled model."""
    has_default_loss = task.name == TaskConfig.name and task.options == asdict(ClassificationOptions())
    return has_default_loss and optimizer == keras_classes.DEFAULT


def _read_arguments(opened: session.Session) -> list[str]:
    """Settles the session's arguments, those of a recorded run or sweep included; returns the flags among them."""
    opened.arguments = tuple(masking.hide_arguments(opened.arguments))
    opened.typed = opened.arguments
    # Checked before recorded overrides are looked for, and once more with them.
    arguments = command_line.arranged(opened.typed)
    membership.join(os.environ)
    arguments = checkpoint_arguments.expand(arguments)
    opened.arguments = tuple(command_line.arranged(arguments))
    sys.argv[1:] = opened.arguments  # without secrets: libraries may record it, and Hydra's parser reads it
    register_resolvers()
    return command_line.split(opened.arguments)[0]


def _find_modules_of_the_user() -> None:
    """Lets a config name modules in the current directory, also where the console script was started."""
    folder = os.getcwd()  # noqa: PTH109 - compared with the text of sys.path's entries
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)


def _print_by_hydra() -> None:
    """Lets Hydra print the config or complete a line; masks the secrets that presets and interpolations bring."""
    line, names = completed(os.environ.get(_TO_COMPLETE, ""))
    if names:
        print(*names)
    if _TO_COMPLETE in os.environ and not line:
        return
    os.environ[_TO_COMPLETE] = line
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), each_composed(masking.mask_printed):
            hydra_main()
    finally:
        sys.stdout.write(secrets.scrub(printed.getvalue()))


def _raise(error: Exception, log: Path) -> NoReturn:
    """Raises what ended a command: a signal as Interrupted, an unexpected error as one line that names the log."""
    try:
        with processes.explained():
            raise error
    except (ConfigError, EngineError, TrackingError, BrokenPipeError) as known:
        if known.__cause__ is not None:  # as of a user's code, of which the line has the last frames alone
            logger.exception("the run failed")
        raise
    except Exception as other:
        signum = interruption(other)
        if signum is not None:
            raise Interrupted(signum) from other
        logger.exception("the run failed")
        text = import_path.raised(other)
        if isinstance(other, MemoryError) or any(sign in str(other) for sign in _NO_MEMORY):
            text = f"out of memory on this machine, or over the limit of `ulimit -v`: {text}"
        raise EngineError(f"{text}; the traceback is in {log}") from other


def _report(error: Exception, arguments: Sequence[str], *, with_traceback: bool) -> int:
    """Prints an error as one line on stderr, a traceback before it, details after it; returns the exit code."""
    if isinstance(error, ProcessError):
        line = str(error)
        code = error.code
    elif isinstance(error, EngineError | TrackingError):
        line = in_one_line(str(error))
        code = EXIT_FAILED
    else:  # ours or Hydra's own: whatever else a command raises has become an EngineError
        line = one_line(error, arguments)
        code = EXIT_REFUSED
    _note_for_restarts(error, line, code)
    if with_traceback:
        text = "".join(traceback.format_exception(error))
        print(secrets.scrub(text), end="", file=sys.stderr)
    # Of several processes with the same error only one prints it.
    if current_team().failed(line, own=code == EXIT_REFUSED):
        # Cut last, and once for all errors, so that no part of a password is left of a value that is cut within it.
        print(f"error: {cut(secrets.scrub(line))}", file=sys.stderr)
    return code


def _note_for_restarts(error: Exception, line: str, code: int) -> None:
    """Notes whether another start of the same command would fail in the same way."""
    # Hydra's own failure to make the run's folder may pass, too, and that of a disk or a network to read an example.
    is_of_the_disk = not isinstance(error, ConfigError) and caused_by_disk(error) is not None
    if isinstance(error, DataError) and isinstance(error.__cause__, OSError):
        is_of_the_disk = True
    if isinstance(error, PassingError) or is_of_the_disk:
        restarts.note("passing", line)
    elif _is_of_a_nan(error) or (code == EXIT_REFUSED and not isinstance(error, ProcessError)):
        # The process whose config is invalid notes it, because only that one knows whether the reason may pass.
        restarts.note("final", line)


def _is_of_a_nan(error: BaseException | None) -> bool:
    """Returns whether a NaN or Inf loss is the cause of an error; another start would compute it again."""
    while error is not None:
        if isinstance(error, NotFiniteError):
            return True
        error = error.__cause__
    return False
