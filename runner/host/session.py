"""State of the command that this process runs, in one object.

A process runs one command at a time. Most of what a part of it needs is handed down in calls; this is the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Session:
    """What is known of the command of this process.

    Attributes:
      program: what the command was started as, `sys.argv[0]`.
      arguments: the command line, secrets masked. First as typed; then as Hydra reads it, with recorded overrides.
      typed: the same without the overrides of a recorded run.
      membership: of this process in a sweep, whose type is above this folder; None for a run of its own.
      project: the current directory when the command began: `hydra.job.chdir=true` changes it. None: no command runs.
    """

    program: str = ""
    arguments: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()
    membership: object = None
    project: Path | None = None


_sessions = [Session()]  # the last one is the current one; the first one is of a process that runs no command


def current() -> Session:
    """Returns the session of the command that this process runs."""
    return _sessions[-1]


@contextmanager
def opened(program: str, arguments: Sequence[str]) -> Iterator[Session]:
    """Opens the session of a command; the one around it is current again afterwards."""
    _sessions.append(Session(program, tuple(arguments), project=Path.cwd()))
    try:
        yield current()
    finally:
        _sessions.pop()


def command_module(otherwise: str = "runner") -> str:
    """Returns the module of this process's command, such as `runner.plan`; `otherwise` for a user's program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if not spec:
        return "runner"
    name: str = spec.name.removesuffix(".__main__")
    if name.split(".")[0] != "runner":
        return otherwise
    return name
