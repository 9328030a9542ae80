"""What a command line of `python -m runner.runs` asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config import values
from runner.config.build import build
from runner.config.fields import checked, choice, integer, stored_path
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import folders

ACTIONS = {
    "list": "lists recorded runs and the size of their checkpoints; the default",
    "compare": "shows runs side by side, the best first: the keys in which they differ, and their results",
    "clean": "prints which checkpoints it would remove; the runs in the tracking store stay",
    "sync": "stores what runs could not store while their tracking server was unavailable",
}
KEYS = {
    "run": "an id or its start, a name, or latest; may be given several times",
    "older": "runs that ended at least so long ago: 30d, 12h",
    "keep": "clean: skips the newest so many runs with checkpoints",
    "status": "such as failed,killed",
    "yes": "clean: true removes the checkpoints",
    "last": "list, compare: only the newest so many, by default 30; 0: all",
    "sweep": "compare: only jobs of this sweep: its run id, its name, or latest",
    "out": "compare: writes table.csv and curves.png into this folder",
    "folder": "folder of checkpoints, or its URL; sync: of runs",
    "uri": "tracking URI, or none; default: $MLFLOW_TRACKING_URI, then outputs/mlflow.db",
}
# Seconds, minutes, hours or days.
_DURATION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?[smhd]", re.ASCII)
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(duration: str) -> float:
    """Returns the seconds of a duration; 0: it is not one.

    >>> seconds_of("1.5h"), seconds_of("soon")
    (5400.0, 0.0)
    """
    if not _DURATION.fullmatch(duration):
        return 0.0
    return float(duration[:-1]) * _UNIT_S[duration[-1]]


def _duration_problem(value: str) -> str | None:
    return None if seconds_of(value) > 0.0 else "must be a number above 0 with a unit, s, m, h or d"


@dataclass(frozen=True)
class Request:
    """An action with its keys, see `KEYS`. A run must match all of `run`, `older`, `keep` and `status`."""

    action: str = "list"
    run: tuple[str, ...] = ()
    older: str | None = checked(None, test=_duration_problem, rule="duration", example="30d")
    keep: int | None = integer(None, at_least=0, example=5)
    status: tuple[str, ...] = choice((), "finished", "failed", "killed", "running", "unfinished", example="failed")
    last: int = integer(30, at_least=0)
    yes: bool = False
    sweep: str | None = None
    out: str | None = None
    folder: str | None = stored_path(None, example="outputs/checkpoints")
    uri: str | None = None


def read(arguments: Sequence[str]) -> Request:
    """Reads a command line; raises ConfigError."""
    content: dict[str, object] = {}
    runs: list[str] = []
    for index, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        if index == 0 and argument in ACTIONS:
            content["action"] = argument
        elif not equals or key not in KEYS:
            fix = did_you_mean(key.lstrip("-"), [*ACTIONS, *KEYS], "see python -m runner.runs --help")
            raise ConfigError(f"{argument}: write one of {', '.join(ACTIONS)}, then key=value; {fix}")
        elif key == "run":
            runs.append(value)
        elif key in content:
            raise invalid(key, value, problem="is given twice", fix=f"write it once, such as {key}={content[key]}")
        else:
            content[key] = value
    if "status" in content:
        content["status"] = list(map(str.strip, str(content["status"]).lower().split(",")))
    yes = content.get("yes", "false")
    # It removes files, so none of YAML's other words for true does.
    if yes not in ("true", "false"):
        raise invalid("yes", yes, problem="must be true or false", fix="set yes=true")
    request = build(Request, {**content, "run": runs}, "")
    values.check(request)
    if request.action == "clean" and content.keys().isdisjoint(("older", "keep", "status")) and not runs:
        raise ConfigError("clean needs a filter: older=30d, keep=5, status=failed,killed or run=<id>")
    if request.out is not None:
        folders.check("out", Path(request.out).absolute())
    return request
