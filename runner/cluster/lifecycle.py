"""A command as one process of several: how it joins the others, where it prints, and why it fails with them."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from runner.cluster import secret, team
from runner.cluster.exiting import at_exit
from runner.cluster.member import Member
from runner.cluster.place import find
from runner.cluster.team import ProcessError, Team, current
from runner.cluster.timeouts import REASON_S
from runner.config.schema import ClusterConfig
from runner.errors import ConfigError, Interrupted, TrackingError
from runner.host import cores
from runner.host.terminal import Output

# In a process's folder: its standard output, and that of process 0's native libraries.
_OUTPUT = "output.log"
_NATIVE = "native.log"

# Words of the libraries' errors about a collective that another process has left.
_COLLECTIVE_WORDS = re.compile(
    "gloo|collective|connection|unavailable|aborted|peer|deadline|nccl|rendezvous", re.IGNORECASE
)


def join(config: ClusterConfig, agrees: Mapping[str, object]) -> None:
    """Joins the other processes of the config, if it has several: see `Member.join`; raises as `secret.token` too."""
    place = find(config)
    if place is None:
        return
    place = replace(place, token=secret.token(place))
    member = Member(place, config.timeout)
    team.enter(member)
    at_exit(member.leave)
    member.join(agrees, config.start_timeout)
    # Processes that may use the same cores of the same machine divide them. A scheduler may have done so already.
    machine = [platform.node(), sorted(os.sched_getaffinity(0))]
    sharing = member.all_gather("machines", machine).count(machine)
    os.environ.setdefault(cores.VARIABLE, str(max(1, cores.available() // sharing)))


@contextmanager
def explained() -> Iterator[None]:
    """Replaces a library's error about a lost process by the reason that the coordinator knows."""
    try:
        yield
    except (ProcessError, ConfigError, TrackingError):
        raise
    except Exception as error:
        # Asked now: a process may have joined inside.
        member = current()
        if not isinstance(member, Member):
            raise
        # An error of a collective most likely has its reason elsewhere, which may not have arrived yet.
        within = 0.0
        if _COLLECTIVE_WORDS.search(str(error)):
            within = REASON_S
        try:
            member.check(within)
        except (ProcessError, Interrupted) as known:
            raise known from error
        raise


def redirect(folder: Path, member: Team) -> None:
    """Redirects standard output to a file in a process's folder: for process 0 that of native code, else all of it."""
    stdout = sys.stdout
    stdout.flush()
    name = _OUTPUT
    if member.is_first:
        name = _NATIVE
        # What Python prints stays where it is, by a copy of the descriptor.
        copy = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors, buffering=1)
        assert isinstance(stdout, Output), "a command cleans its output"
        stdout._stream = copy
    with suppress(OSError):
        handle = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(handle, 1)
        os.close(handle)
