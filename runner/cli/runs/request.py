"""What a command line of `python -m runner.runs` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.fields import duration_problem, seconds_of
from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import folders
from runner.host.stores import urls

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
_STATUSES = ("FINISHED", "FAILED", "KILLED", "RUNNING", "UNFINISHED")


@dataclass(frozen=True)
class Request:
    """An action with its keys. A run must match all filters: `runs`, `older`, `keep` and `statuses`.

    Attributes:
      runs: ids, starts of ids, names or `latest`; none: all.
      older: seconds since the run ended, at least; None: any.
      keep: the newest so many runs with checkpoints do not match; None: all match.
      statuses: of the run, as MLflow writes them; none: any.
      last: the newest so many are shown; 0: all.
    """

    action: str = "list"
    runs: tuple[str, ...] = ()
    older: float | None = None
    keep: int | None = None
    statuses: tuple[str, ...] = ()
    last: int = 30
    confirmed: bool = False
    sweep: str | None = None
    out: Path | None = None
    folder: str | None = None
    uri: str | None = None

    @property
    def has_filter(self) -> bool:
        """Whether some runs may not match."""
        return (self.runs, self.older, self.keep, self.statuses) != ((), None, None, ())


def read(arguments: Sequence[str]) -> Request:
    """Reads a command line.

    Raises:
      ConfigError: an unknown action or key, or an invalid value.
    """
    action = "list"
    runs: list[str] = []
    values: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        if index == 0 and argument in ACTIONS:
            action = argument
        elif not equals or key not in KEYS:
            fix = did_you_mean(key.lstrip("-"), [*ACTIONS, *KEYS], "see python -m runner.runs --help")
            raise ConfigError(f"{argument}: write one of {', '.join(ACTIONS)}, then key=value; {fix}")
        elif key == "run":
            runs.append(value)
        elif key in values:
            fix = f"write it once, such as {key}={values[key]}"
            if key == "status":
                fix = f"write {key}={values[key]},{value}"
            raise invalid(key, value, problem="is given twice", fix=fix)
        else:
            values[key] = value
    return Request(
        action,
        tuple(runs),
        _seconds(values.get("older")),
        _count("keep", values.get("keep")),
        _statuses(values.get("status", "")),
        _count("last", values.get("last", "30")) or 0,
        _truth("yes", values.get("yes", "false")),
        values.get("sweep"),
        _new_folder("out", values.get("out")),
        _place("folder", values.get("folder")),
        values.get("uri"),
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    problem = duration_problem(text)
    if problem is not None:
        raise invalid("older", text, problem=problem, fix="set older=30d")
    return seconds_of(text)


def _count(key: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise invalid(key, text, problem="must be an integer of at least 0", fix=f"set {key}=5")
    return int(text)


def _statuses(text: str) -> tuple[str, ...]:
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _STATUSES:
            known = ", ".join(_STATUSES).lower()
            raise invalid("status", name.lower(), problem=f"must be one of {known}", fix="set status=failed,killed")
    return tuple(names)


def _truth(key: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise invalid(key, text, problem="must be true or false", fix=f"set {key}=true")
    return text == "true"


def _new_folder(key: str, text: str | None) -> Path | None:
    if text is None:
        return None
    folder = Path(text).absolute()
    folders.check(key, folder)
    return folder


def _place(key: str, text: str | None) -> str | None:
    """Rejects a URL that can't name a folder of an object store."""
    problem = urls.problem(text) if text is not None and urls.is_url(text) else None
    if problem is not None:
        raise invalid(key, text, problem=problem, fix=f"set {key}=s3://bucket/folder or a local path")
    return text
