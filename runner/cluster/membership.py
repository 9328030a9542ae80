"""What a sweep's launcher passes to the process of a job, through the environment; short names of what varies."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass

from runner.cluster.launch import LAUNCHER_VARIABLE
from runner.host import session

_VARIABLE = "RUNNER_SWEEP_JOB"
VARIED = "mlflow.varied."
_PR_SET_PDEATHSIG = 1  # of Linux' prctl: the signal that this process gets when its parent ends

# Characters that a number may have in a name; longer ones are rounded to four digits.
_LONGEST_NUMBER = 8


@dataclass(frozen=True)
class Membership:
    """What a job knows of its sweep: the sweep's run, if that is recorded, and the name and tags of its own run."""

    parent_run_id: str | None
    name: str
    tags: dict[str, str]

    def environment(self) -> dict[str, str]:
        """Returns the variable that passes this to a process."""
        return {_VARIABLE: json.dumps(asdict(self))}


def varied_tags(varied: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags of a job's run that have its values of what varies, by key."""
    return {f"{VARIED}{key}": value for key, value in varied.items()}


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


def membership() -> Membership | None:
    """Returns what this process knows of its sweep; None for a run of its own."""
    found = session.current().membership
    return found if isinstance(found, Membership) else None


def varied_name(varied: Mapping[str, str]) -> str:
    """Returns the short name of varied keys and their values.

    A key is named by its last part, or by more of it if two are alike.

    >>> varied_name({"dataset.batch_size": "64", "mesh": "batch8"})
    'batch_size=64,mesh=batch8'
    >>> varied_name({"mesh.axes.batch": "2", "layout.batch": "x"})
    'axes.batch=2,layout.batch=x'
    """
    parts = [f"{short}={short_value(varied[key])}" for key, short in short_keys(list(varied)).items()]
    return ",".join(parts)


def short_value(value: str) -> str:
    """Returns a long number rounded to four digits, other values unchanged."""
    if len(value) <= _LONGEST_NUMBER:
        return value
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return value


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Returns the shortest suffix of each dotted key that is its own."""
    parts_of = {key: key.split(".") for key in keys}
    short: dict[str, str] = {}
    for key, parts in parts_of.items():
        for count in range(1, len(parts) + 1):
            suffix = parts[-count:]
            short[key] = ".".join(suffix)
            # At the latest, the whole key differs from all others.
            if [other[-count:] for other in parts_of.values()].count(suffix) == 1:
                break
    return short
