"""`resume=<run id|latest|auto>`, `branch=...` and `run=...` on the command line.

This module imports neither NumPy nor what reads checkpoints: every command imports it before its config is checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig

from runner.checkpoint import recorded
from runner.checkpoint.places import Place, place
from runner.config import urls
from runner.config.convert import as_typed
from runner.config.invocation import composed_with
from runner.config.quoting import quoted, unquoted
from runner.config.schema import AUTO
from runner.errors import ConfigError, invalid
from runner.host.late import late
from runner.host.paths import outputs_dir

if TYPE_CHECKING:
    from runner.checkpoint import runs
else:
    # It imports NumPy, which an error of the config should not wait for.
    runs = late("runner.checkpoint.runs")

# `run` evaluates or exports a run, `resume` continues it, and `branch` continues it as a new run.
KEYS = ("run", "resume", "branch")
NAME = "name"
_FOLDER = "trainer.checkpoint.folder"
# The checkpoint that a reference names after the run.
_STEP = re.compile(r"@(\d+|best)$", re.ASCII)
# It needs `resume=auto` or `resume=<run>`, so a branch of a run with restarts has none.
_RESTARTS = "cluster.restarts"
MULTIRUN = ("-m", "--multirun")
# Added by the program to a command whose builder returns a compiled model.
OF_COMPILE = "task=compiled"


def folder_of(folder: str | None) -> Place:
    """Returns the parent of the runs' checkpoint folders, by `trainer.checkpoint.folder`."""
    if not folder:
        return outputs_dir() / "checkpoints"
    return place(folder) if urls.is_url(folder) else Path(folder).expanduser().absolute()


def expand(arguments: Sequence[str]) -> list[str]:
    """Returns a command line, as typed, with the recorded overrides of the run that it names.

    A key that is typed again replaces the recorded one, and an option of a group replaces the recorded keys of that
    group. A ConfigError says that there is no such run, or why it or its record can't be used.
    """
    named = [key for key in KEYS if value_of(arguments, key)]
    if not named:
        return list(arguments)
    if len(named) > 1:
        raise ConfigError(
            f"{' and '.join(named)} can't be combined: resume continues a run, branch continues it as a new run, and "
            "run is for evaluate and export; leave out all but one"
        )
    (key,) = named
    reference = value_of(arguments, key)
    if not set(MULTIRUN).isdisjoint(arguments):
        problem = "needs a single run, not a multirun"
        raise invalid(key, reference, problem=problem, fix="drop -m, or set sweep.resume to continue a sweep")
    if key == "resume" and reference == AUTO:
        # The same command line is typed each time, so nothing recorded is added to it.
        return list(arguments)
    typed_folder = value_of(arguments, _FOLDER)
    # Here and not with the config, because the run is looked for there first.
    _check_url(_FOLDER, typed_folder)
    _check_url(key, _STEP.sub("", reference))
    run, step = runs.find(key, reference, folder_of(typed_folder or None))
    typed = [argument for argument in arguments if key_of(argument) != key]
    typed_keys = list(map(key_of, typed))
    if key == "run":
        # A run is evaluated or exported in this process, however many processes trained it.
        typed_keys.append("cluster")
    elif key == "branch":
        typed_keys.append(_RESTARTS)
    foreign = recorded.why_foreign(run.folder, runs.RECORD)
    overrides = recorded.checked(f"{key}={run.folder}", foreign, without(run.record["overrides"], typed_keys))
    resolved = str(run.folder)
    if step is not None:
        resolved += f"@{step}"
    return [*overrides, *typed, f"{key}={quoted(resolved)}"]


def _check_url(key: str, value: str) -> None:
    """Rejects a URL that can't name a folder of an object store; raises ConfigError."""
    if not urls.is_url(value):
        return
    problem = urls.problem(value)
    if problem is not None:
        raise invalid(key, value, problem=problem, fix=f"set {key}=s3://bucket/folder or a local path")


def recorded_overrides() -> list[str]:
    """Returns this command's arguments as a run's record has them: without the keys that name a run."""
    return [*composed_with(), *without(as_typed(HydraConfig.get().overrides.task), (*KEYS, NAME))]


def without(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Returns recorded overrides without those of keys that are typed again, and without keys below them."""
    typed = tuple(f"{key}." for key in keys)
    return [argument for argument in overrides if not f"{key_of(argument)}.".startswith(typed)]


def key_of(argument: str) -> str:
    """Returns the key of an override; the argument itself if it is no override."""
    return argument.lstrip("+~").partition("=")[0]


def value_of(arguments: Sequence[str], key: str) -> str:
    """Returns the last value of a key; empty if there is none, or it is null."""
    values = [argument.partition("=")[2] for argument in arguments if key_of(argument) == key]
    if not values or values[-1].strip().lower() == "null":
        return ""
    return unquoted(values[-1])
