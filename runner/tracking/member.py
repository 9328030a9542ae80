"""Membership of a job in its sweep, which the launcher passes through the environment."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field

from runner.cluster.launch import LAUNCHER_VARIABLE
from runner.config.names import varied_name
from runner.host import session
from runner.tracking.records import TAG_LIMIT, clean_key, cut

_VARIABLE = "RUNNER_SWEEP_JOB"
_VARIED = "varied."
JOB_TAG = "runner.sweep.job"
_PR_SET_PDEATHSIG = 1  # of Linux' prctl: the signal that this process gets when its parent ends
Values = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Membership:
    """What a job knows of the sweep that it belongs to.

    Attributes:
      parent_run_id: the sweep's run; None where nothing is recorded.
      job: its number in the sweep.
      varied: what varies, with this job's values.
    """

    parent_run_id: str | None
    job: int
    varied: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's name."""
        return varied_name(self.varied) or f"job {self.job}"

    def tags(self) -> dict[str, str]:
        """Returns the tags with the job's number and its values."""
        tags = {JOB_TAG: str(self.job), "runner.varied": varied_name(self.varied)}
        return tags | varied_tags(self.varied)

    def environment(self) -> dict[str, str]:
        """Returns the variable that passes this to a process."""
        return {_VARIABLE: json.dumps(asdict(self))}


def varied_tags(varied: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags of a job's run that have its values of what varies, by key."""
    return {f"{_VARIED}{key.lstrip('+')}": value for key, value in varied.items()}


def values_of(tags: Mapping[str, str]) -> Values:
    """Returns what identifies a run in its sweep: short names of two jobs may be alike, their values are not."""
    # As the store cuts them, so that its tags and those of `varied_tags` compare equal.
    return frozenset((clean_key(key), cut(value, TAG_LIMIT)) for key, value in tags.items() if key.startswith(_VARIED))


def join(environ: MutableMapping[str, str]) -> None:
    """Reads, once, what a launcher told this process; a job whose launcher is killed gets a SIGTERM.

    The launcher's variables, which are not for processes that this one starts, are removed.
    """
    membership_json = environ.pop(_VARIABLE, "")
    launcher_pid = environ.pop(LAUNCHER_VARIABLE, "")
    if membership_json:
        session.current().membership = Membership(**json.loads(membership_json))
    if sys.platform == "linux" and launcher_pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        ended_before_prctl = os.getppid() != int(launcher_pid)
        if ended_before_prctl:
            sys.exit(128 + signal.SIGTERM)


def environment() -> dict[str, str]:
    """Returns the variable that hands this process's membership, if any, to those that run the job in its place."""
    member = membership()
    return {} if member is None else member.environment()


def membership() -> Membership | None:
    """Returns what this process knows of its sweep; None for a run of its own."""
    found = session.current().membership
    return found if isinstance(found, Membership) else None
