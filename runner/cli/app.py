"""The path of every command: parse the command line, compose the config, validate it, run the command.

`sys.argv` is read here and in `runner.cli.entry`, and nowhere below (tests/test_house.py).
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.checkpoint import arguments as checkpoint_arguments
from runner.cli import command_line
from runner.cli.messages import one_line
from runner.cli.prepare import LOG, Prepared, prepare
from runner.cli.resolvers import register_resolvers
from runner.cli.sweep import (
    launch,
    resume,
    state,
)
from runner.cluster import lifecycle as processes
from runner.cluster import restarts
from runner.cluster.team import ProcessError
from runner.cluster.team import current as current_team
from runner.config.compose import each_composed, hydra_main
from runner.config.schema import RunConfig
from runner.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_REFUSED,
    ConfigError,
    DataError,
    EngineError,
    Interrupted,
    NotFiniteError,
    OutOfMemoryError,
    PassingError,
    Refused,
    TrackingError,
    cut,
    in_one_line,
)
from runner.host import paths, secrets, session, stages, work
from runner.host.late import late
from runner.host.outputs import caused_by_disk
from runner.host.signals import current, interruption
from runner.tracking import member

if TYPE_CHECKING:
    from runner.cli.sweep import report
else:
    report = late("runner.cli.sweep.report")

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 600  # of an unexpected error; its traceback is in the log
_FULL_ERROR = "HYDRA_FULL_ERROR"
# What a loader or a system call says without memory; what an engine says is in `runner.plan.exhausted`.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory", "std::bad_alloc", "can't start new thread")
Command = Callable[[RunConfig, DictConfig], None]


def run_module(module: str, after: str | None = None) -> int:
    """Runs the command `run` of a module, which is imported once the config has been checked; see `run_command`.

    Args:
      module: has `run(config, composed)`.
      after: module with `end(code)`, called last, which returns the exit code; None: nothing is called.
    """
    end = None
    if after is not None:
        end = import_module(after).end
    return run_command(lambda config, composed: import_module(module).run(config, composed), end)


def run_command(command: Command, end: Callable[[int], int] | None = None) -> int:
    """Composes the config from the process's command line, checks it and runs a command on it.

    Args:
      command: called with the checked config and the composed DictConfig.
      end: called last with the exit code, while the session still knows the sweep that has ended. It returns the exit
        code; None: nothing is called.

    Returns:
      The process's exit code: 0 done, 1 failed, 2 the config is invalid.

    Raises:
      Interrupted: a signal came.
    """
    wants_traceback = os.environ.get(_FULL_ERROR) == "1"
    # Lets errors reach us, in place of Hydra's own printer, which ends the process with its text and exit code 1.
    os.environ[_FULL_ERROR] = "1"
    _find_modules_of_the_user()
    work.begin_command()
    with session.opened(sys.argv[0], sys.argv[1:]) as opened, paths.project():
        try:
            opened.arguments = tuple(secrets.hide_arguments(sys.argv[1:]))
            # Checked before recorded overrides are looked for, and once more with them.
            typed = opened.arguments
            arguments = command_line.arranged(typed)
            member.join(os.environ)
            arguments = checkpoint_arguments.expand(resume.expand(arguments))
            opened.arguments = tuple(command_line.arranged(arguments))
            code = EXIT_DONE if _run(_Task(command, typed), opened) else EXIT_FAILED
        except (Refused, Exception) as raised:
            error = raised
            if isinstance(raised, Refused):  # carries an error out of a callback
                error = raised.error
            assert isinstance(error, Exception)
            if interruption(error) is not None or isinstance(error, BrokenPipeError):
                raise
            line, code = _described(error, opened.arguments)
            _note_for_restarts(error, line, code)
            details = error.details if isinstance(error, OutOfMemoryError) else ()
            _report(line, code, error if wants_traceback else None, details)
        return code if end is None else end(code)


def _note_for_restarts(error: Exception, line: str, code: int) -> None:
    """Notes whether another start of the same command would fail in the same way."""
    if _may_pass(error):
        restarts.note_passing(line)
    elif _is_of_a_nan(error) or (code == EXIT_REFUSED and not isinstance(error, ProcessError)):
        # The process whose config is invalid notes it, because only that one knows whether the reason may pass.
        restarts.note_final(line)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, PassingError):
        return True
    # Hydra's own failure to make the run's folder.
    return not isinstance(error, ConfigError) and caused_by_disk(error) is not None


def _is_of_a_nan(error: BaseException | None) -> bool:
    """Returns whether a NaN or Inf loss is the cause of an error; another start would compute it again."""
    while error is not None:
        if isinstance(error, NotFiniteError):
            return True
        error = error.__cause__
    return False


def _find_modules_of_the_user() -> None:
    """Lets a config name modules in the current directory, also where the console script was started."""
    folder = os.getcwd()  # noqa: PTH109 - compared with the text of sys.path's entries
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)


def _run(task: _Task, opened: session.Session) -> bool:
    """Runs the command, or a sweep of it to its end, however that comes.

    Returns:
      Whether all jobs of a sweep passed; True where there was none.
    """
    # Hydra makes the callback that calls this, so it can't be handed a closure any other way.
    opened.prepare_run = task.prepare
    register_resolvers()
    sys.argv[1:] = opened.arguments  # Hydra's parser reads it
    ended_by: BaseException | None = None
    passed = True
    try:
        with _printed_without_secrets(opened.arguments):
            hydra_main(task.run)()
        if task.error is not None:
            raise task.error
    except BaseException as error:
        ended_by = error
        raise
    finally:
        with current().deferring():  # a signal now must not keep the sweep's run from getting its status
            sweep = state.started()
            if sweep is not None:
                if ended_by is not None and not sweep.ledger.jobs:
                    sweep.give_up()
                passed = report.finish(sweep, ended_by)
    return passed


@contextmanager
def _printed_without_secrets(arguments: Sequence[str]) -> Iterator[None]:
    """Masks the secrets in what Hydra prints of the config: presets and interpolations bring some, too."""
    if not any(argument.partition("=")[0] in command_line.PRINTING_FLAGS for argument in arguments):
        yield
        return
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), each_composed(secrets.mask_printed):
            yield
    finally:
        sys.stdout.write(secrets.scrub(printed.getvalue()))


class _Task:
    """One command under Hydra: what its callback prepares, and what the command raises.

    Hydra prints an exception of its task in its own way, so that the task stores it instead.
    """

    def __init__(self, command: Command, typed: Sequence[str]) -> None:
        self._command = command
        self._typed = typed
        self._prepared: Prepared | None = None
        self.error: Exception | None = None

    def prepare(self, composed: DictConfig) -> None:
        """Prepares the run; Hydra's callback calls this with the composed config."""
        self._prepared = prepare(composed, self._typed)

    def run(self, composed: DictConfig) -> None:
        """Runs the command; Hydra calls this when it has made the run's folder."""
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            launch.run_foreign_job()
            return
        if self._prepared is None:
            self.error = ConfigError("hydra.callbacks: a run needs the callback `run`; leave hydra.callbacks as it is")
            return
        config = self._prepared.config
        team = current_team()
        stages.speak(wanted=team.is_first and config.trainer.progress != "none")
        try:
            with processes.explained():
                self._command(config, composed)
        except ConfigError as error:
            self.error = error
            self._prepared.withdraw()
        except (DataError, EngineError, TrackingError, BrokenPipeError) as error:
            self.error = error
        except Exception as error:
            signum = interruption(error)
            if signum is not None:
                raise Interrupted(signum) from error
            logger.exception("the run failed")
            text = f"{type(error).__name__}: {in_one_line(str(error))[:_SHOWN_CHARACTERS]}"
            if isinstance(error, MemoryError) or any(sign in str(error) for sign in _NO_MEMORY):
                text = f"out of memory on this machine, or over the limit of `ulimit -v`: {text}"
            self.error = EngineError(f"{text}; the traceback is in {self._prepared.claim.folder / LOG}")
            self.error.__cause__ = error


def _described(error: Exception, arguments: tuple[str, ...]) -> tuple[str, int]:
    """Returns the line that describes an error, and the exit code for it."""
    if isinstance(error, ProcessError):
        return str(error), error.code
    if isinstance(error, DataError | EngineError | TrackingError):
        return in_one_line(str(error)), EXIT_FAILED
    # Ours or Hydra's own: whatever else a command raises has become an EngineError.
    return one_line(error, arguments), EXIT_REFUSED


def _report(line: str, code: int, traceback_of: Exception | None, details: Sequence[str]) -> None:
    """Prints an error as one line on stderr, its traceback before it if it is given, and its details after it."""
    if traceback_of is not None:
        text = "".join(traceback.format_exception(traceback_of))
        print(secrets.scrub(text), end="", file=sys.stderr)
    # Of several processes with the same error only one prints it.
    if processes.failed(line, own=code == EXIT_REFUSED):
        # Cut last, and once for all errors, so that no part of a password is left of a value that is cut within it.
        print(f"error: {cut(secrets.scrub(line))}", file=sys.stderr)
        for detail in details:
            print(secrets.scrub(detail), file=sys.stderr)
