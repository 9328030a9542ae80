"""How a command becomes one process of several: it starts the others, or comes to them."""

from __future__ import annotations

import itertools
import os
import platform
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError, DataError, Interrupted, TrackingError
from runner.host import cores
from runner.host.signals import SIGNALS, StopRequest, at_exit
from runner.processes import secret, team
from runner.processes.hub import SILENCE_S
from runner.processes.member import Ending, Member
from runner.processes.place import address_of, find
from runner.processes.team import ProcessError, current

# What the libraries say of a collective that another process has left.
_COLLECTIVE = ("gloo", "collective", "connection", "unavailable", "aborted", "peer", "deadline", "nccl", "rendezvous")
_LATE_S = 3.0
_done = itertools.count()
_why: list[tuple[str, bool]] = []


def launches(config: ClusterConfig) -> bool:
    """Tells whether this process is to start the others, and do nothing else."""
    return config.name == "local" and find(config) is None and (config.processes or 1) > 1


def is_one_of_several(config: ClusterConfig) -> bool:
    """Tells whether this process is one of several, which `join` brings together."""
    return find(config) is not None


def join(config: ClusterConfig, agrees: Mapping[str, object]) -> None:
    """Makes this process one of the config's, if it has several; returns when all have come.

    Args:
      config: checked.
      agrees: what must be the same in all.

    Raises:
      ConfigError: they have no secret.
      ProcessError: they did not come together, or differ.
    """
    place = find(config)
    if place is None:
        return
    address = address_of(config.interface) if config.interface else None
    place = replace(place, token=secret.token(config, place))
    member = Member(place, config.timeout)
    team.enter(member)
    at_exit(leave)
    member.come(agrees, config.start_timeout, address)
    own = [platform.node(), cores.own()]  # a scheduler may have dealt the cores out already
    beside = member.all_gather("machines", own).count(own)
    os.environ.setdefault(cores.VARIABLE, str(max(1, cores.available() // beside)))


def failed(why: str, *, own: bool) -> bool:
    """Notes why this process fails, for the others; tells whether it is to say so itself.

    Args:
      why: in one line.
      own: it is no fault of this process alone.
    """
    _why[:] = [(why, own)]
    member = current()
    return not isinstance(member, Member) or member.is_first or not member.place.is_launched


def leave(code: int) -> None:
    """Ends this process with an exit code, when the others know; does nothing where it is alone."""
    member = current()
    if not isinstance(member, Member):
        return
    why, own = _why[0] if _why else (f"it exits with code {code}", False)
    member.begin_leaving()
    for one in SIGNALS:
        if signal.getsignal(one) != signal.SIG_IGN:
            signal.signal(one, lambda number, _: member.leave_at_once(number))  # the others may be at work yet
    member.leave(code, why if code else "", code - 128 if code > 128 else None, own=own)


@contextmanager
def explained() -> Iterator[None]:
    """Turns what a library says where another process has gone into what the switchboard knows of it.

    Raises:
      ProcessError, Interrupted: the run has ended elsewhere.
    """
    member = current()
    if not isinstance(member, Member):
        yield
        return
    try:
        yield
    except (ProcessError, ConfigError, DataError, TrackingError):
        raise
    except Exception as error:
        text = str(error).lower()
        seconds = SILENCE_S + _LATE_S if any(word in text for word in _COLLECTIVE) else 0.0
        if member.ended(seconds) is None:
            raise
        try:
            member.check()
        except (ProcessError, Interrupted) as known:
            raise known from error
        raise


def finish_together() -> None:
    """Waits until all processes have done their work.

    Raises:
      ProcessError, Interrupted: one can't, or the run has ended elsewhere.
    """
    current().all_gather(f"done {next(_done)}", True)


def on_end(end: Ending) -> Callable[[], None]:
    """Has something done where the others end this process; see `Member.on_end`."""
    member = current()
    return member.on_end(end) if isinstance(member, Member) else lambda: None


def begin_leaving() -> None:
    """Says that the main thread ends this process, or waits where another one does."""
    member = current()
    if isinstance(member, Member):
        member.begin_leaving()


class AgreedStop:
    """A request to stop that all processes hear of at the same step."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._asked = 0

    def raise_if_requested(self) -> None:
        """Raises `Interrupted` in every process, if a signal came to one of them."""
        member = current()
        if not isinstance(member, Member):
            self._stop.raise_if_requested()
            return
        if self._stop.signum is not None:
            member.pass_on(self._stop.signum)
        self._asked += 1
        signum = member.broadcast(f"stop {self._asked}", lambda: self._stop.signum or member.signalled())
        if signum is not None:
            member.has_agreed_to_end = True
            raise Interrupted(signum)
