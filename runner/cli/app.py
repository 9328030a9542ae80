"""What every command shares: Hydra composes, the config is checked, and a refusal is one line and exit code 2."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner.cli import beginning, command_line
from runner.cli.refusals import one_line
from runner.config.schema import RunConfig
from runner.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_REFUSED,
    ConfigError,
    DataError,
    EngineError,
    Interrupted,
    Refused,
    TrackingError,
)
from runner.host import commands, paths, secrets, stages
from runner.host.late import late
from runner.host.signals import current, interruption
from runner.processes import begin as processes
from runner.processes.team import ProcessError
from runner.processes.team import current as current_team
from runner.sweep import launch, member, resume, state
from runner.tracking.location import sqlite_uri
from runner.training.checkpoint import arguments

if TYPE_CHECKING:
    from runner.sweep import report
else:
    report = late("runner.sweep.report")

logger = logging.getLogger(__name__)

_LONGEST = 600  # characters of a library's error that are shown
Command = Callable[[RunConfig, DictConfig], None]


def run_module(module: str) -> int:
    """Runs the command `run` of a module, which is imported when the config has been checked; see `run_command`."""
    return run_command(lambda config, composed: import_module(module).run(config, composed))


def run_command(command: Command) -> int:
    """Composes the config from the command line, checks it and runs a command on it.

    Args:
      command: called with the checked config and the composed DictConfig.

    Returns:
      The process's exit code: 0 done, 1 failed, 2 the config was refused.

    Raises:
      Interrupted: a signal came.
    """
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us instead of Hydra's own printer
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.append(os.getcwd())  # noqa: PTH109 - a user's own builders, also under the console script
    try:
        sys.argv[1:] = command_line.arranged(secrets.hide_arguments(sys.argv[1:]))
        with paths.project():
            return EXIT_DONE if _run(command) else EXIT_FAILED
    except (Refused, Exception) as raised:  # ours or Hydra's own: what a command raises besides has been wrapped
        error = raised.error if isinstance(raised, Refused) else raised
        if interruption(error) is not None or isinstance(error, BrokenPipeError):
            raise
        if isinstance(error, ProcessError):
            return _report(str(error), error.code, wants_traceback, error)
        if isinstance(error, DataError | EngineError | TrackingError):
            return _report(" ".join(str(error).split()), EXIT_FAILED, wants_traceback, error)
        return _report(one_line(error), EXIT_REFUSED, wants_traceback, error)


def _run(command: Command) -> bool:
    """Runs the command, or a sweep of it to its end, however that comes.

    Returns:
      Whether a sweep's jobs all passed; True where there was none.
    """
    failures: list[Exception] = []
    ended: BaseException | None = None
    passed = True
    member.join()
    sys.argv[1:] = command_line.arranged(arguments.expand(resume.expand(sys.argv[1:])))
    try:
        _hydra_main(command, failures)()
        for failure in failures:
            raise failure
    except BaseException as error:
        ended = error
        raise
    finally:
        with current().deferring():  # the sweep's run gets its status
            if (sweep := state.started()) is not None:
                if ended is not None and not sweep.ledger.jobs:
                    sweep.give_up()
                passed = report.finish(sweep, ended)
    return passed


def register_resolvers() -> None:
    """Lets OmegaConf resolve what conf/config.yaml asks the program for."""
    OmegaConf.register_new_resolver("runner_outputs", lambda: str(paths.outputs_dir()), replace=True)
    OmegaConf.register_new_resolver("runner_database", _database, replace=True)
    # Drawn once per command: Hydra resolves a folder's name several times, and must get the same one.
    random_part = paths.random_part()
    OmegaConf.register_new_resolver("runner_random", lambda: random_part, replace=True)
    OmegaConf.register_new_resolver("runner_commands", commands.listed, replace=True)


def _database(name: str) -> str:
    return sqlite_uri(paths.outputs_dir() / name)


def _hydra_main(command: Command, failures: list[Exception]) -> Callable[[], None]:
    register_resolvers()

    def task(composed: DictConfig) -> None:
        """Keeps an error for `run_command`; Hydra would print it in its own way."""
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            launch.run_foreign_job()
            return
        try:
            begun = beginning.begun()
        except ConfigError as error:
            failures.append(error)
            return
        stages.speak(wanted=current_team().is_first and begun.config.trainer.progress != "none")
        try:
            with processes.explained():
                command(begun.config, composed)
        except ConfigError as error:
            failures.append(error)
            begun.withdraw()
        except (DataError, EngineError, TrackingError, BrokenPipeError) as error:
            failures.append(error)
        except Exception as error:
            if (signum := interruption(error)) is not None:
                raise Interrupted(signum) from error
            logger.exception("the run failed")
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
            wrapped = EngineError(f"{text}; the traceback is in {begun.claim.folder / beginning.LOG}")
            wrapped.__cause__ = error
            failures.append(wrapped)

    decorated: Callable[[], None] = hydra.main(
        version_base="1.3", config_path=str(paths.conf_dir()), config_name="config"
    )(task)
    return decorated


def _report(line: str, code: int, wants_traceback: bool, error: Exception) -> int:
    if wants_traceback:
        print(secrets.scrub("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if processes.failed(line, own=code == EXIT_REFUSED):
        print(f"error: {secrets.scrub(line)}", file=sys.stderr)
    return code
