"""Starts a command, and starts it again when its run is lost (`python -m runner.supervise -- <command>`)."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence

from runner.checkpoint.arguments import value_of
from runner.cluster import restarts
from runner.config.schema import AUTO
from runner.errors import ConfigError, Interrupted, invalid
from runner.host.signals import collected

_USAGE = "python -m runner.supervise -- python -m runner resume=auto name=exp1 ..."
_MOST = "cluster.restarts"
# Used where the command sets no limit of its own: enough for a bad night, and few enough that a run which fails at
# once each time ends within minutes.
_DEFAULT_MOST = 10
# Between two looks for a signal.
_POLL_S = 0.1


def main(arguments: Sequence[str]) -> int:
    """Supervises a command, which is started again as often as its `cluster.restarts` says.

    Returns the exit code of `restarts.run`; a signal, which has ended the command, is raised as Interrupted.
    """
    command = list(arguments)
    if command[:1] == ["--"]:
        command = command[1:]
    check(command)

    def start(variables: Mapping[str, str]) -> int:
        with collected() as signals:
            try:
                process = subprocess.Popen(command, env={**os.environ, **variables})
            except OSError as error:
                raise ConfigError(f"{command[0]} can't be started ({error.strerror}); check its name") from error
            passed_on = 0
            while process.poll() is None:
                for signum in signals[passed_on:]:
                    process.send_signal(signum)
                    passed_on += 1
                time.sleep(_POLL_S)
        if signals and process.returncode:
            raise Interrupted(signals[0])
        return process.returncode

    code = restarts.run(start, int(value_of(command, _MOST) or _DEFAULT_MOST))
    # As a shell gives it: 128 + n if signal n has killed the command.
    return code if code >= 0 else 128 - code


def check(command: Sequence[str]) -> None:
    """Rejects, by a ConfigError, a command line that can't be started again."""
    if not command or command[0].startswith("-"):
        raise ConfigError(f"runner.supervise: needs a command; write {_USAGE}")
    if value_of(command, "resume") != AUTO:
        fix = "add resume=auto name=<name> to the command"
        raise ConfigError(f"runner.supervise: {shlex.join(command)}: a restart must continue the run; {fix}")
    most = value_of(command, _MOST)
    if most and not most.isdigit():
        raise invalid(_MOST, most, problem="must be an integer of at least 0", fix=f"set {_MOST}={_DEFAULT_MOST}")
