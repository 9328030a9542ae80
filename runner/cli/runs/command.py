"""Command line of `python -m runner.runs`: lists, compares, cleans and synchronizes runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.runs.selection import Selection, age, statuses
from runner.errors import EXIT_FAILED, EXIT_REFUSED, ConfigError, TrackingError, did_you_mean, invalid
from runner.host import folders
from runner.host.late import late
from runner.host.parser import Parser, truth
from runner.host.stores import urls

if TYPE_CHECKING:
    from runner.cli.runs import act
else:
    # It imports MLflow.
    act = late("runner.cli.runs.act")

_ACTIONS = ("list", "compare", "clean", "sync")


def main(arguments: Sequence[str]) -> int:
    """Lists recorded runs, or does with them what the command line asks for.

    Returns:
      The process's exit code: 0 done, 1 the store or the disk failed, 2 the command line is invalid.
    """
    parser = _parser()
    try:
        options = parser.read(arguments)
        selection = Selection(runs=tuple(options.run), statuses=statuses(options.status))
        if options.older is not None:
            selection = replace(selection, older=age("older", options.older))
        if options.keep is not None:
            selection = replace(selection, keep=_count("keep", options.keep))
        last = _count("last", options.last)
        confirmed = truth("yes", options.yes)
        if options.action not in _ACTIONS:
            fix = did_you_mean(options.action, _ACTIONS, f"see {parser.prog} --help")
            raise ConfigError(f"{options.action}: must be one of {', '.join(_ACTIONS)}; {fix}")
        _check_folder(options.folder)
        out = Path(options.out).absolute() if options.out else None
        if out is not None:
            folders.check("out", out)
        store = act.open_existing(options.uri)
        if options.action == "compare":
            return act.compare_runs(store, options.folder, selection, options.sweep, last, out)
        if options.action == "clean":
            return act.clean(store, options.folder, selection, confirmed=confirmed)
        if options.action == "sync":
            return act.sync(store, options.folder)
        return act.show(store, options.folder, selection, last)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _count(key: str, text: str) -> int:
    if not text.isdecimal():
        raise invalid(key, text, problem="must be an integer of at least 0", fix=f"set {key}=5")
    return int(text)


def _check_folder(folder: str | None) -> None:
    """Rejects a URL that can't name a folder of an object store; raises ConfigError."""
    if folder is not None and urls.is_url(folder):
        problem = urls.problem(folder)
        if problem is not None:
            raise invalid("folder", folder, problem=problem, fix="set folder=s3://bucket/folder or a local path")


def _parser() -> Parser:
    parser = Parser(
        "runner.runs",
        "Lists recorded runs and the size of their checkpoints. compare shows runs side by side, the best first: the "
        "keys in which they differ, and their results. clean prints which checkpoints it would remove, and removes "
        "them with yes=true; the runs in the tracking store stay. sync stores what runs could not store while their "
        "tracking server was unavailable.",
        [
            "status=failed,killed",
            "compare sweep=latest out=outputs/compare",
            "clean older=30d keep=5",
            "clean status=failed,killed yes=true",
        ],
    )
    parser.add_argument("action", nargs="?", default="list", metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument("--run", action="append", default=[], help="an id or its start, a name, or latest")
    parser.add_argument("--older", metavar="AGE", help="runs that ended at least so long ago: 30d, 12h, 2w")
    parser.add_argument("--keep", metavar="COUNT", help="clean: skips the newest so many runs with checkpoints")
    parser.add_argument("--status", action="append", default=[], help="such as failed,killed")
    parser.add_argument("--yes", nargs="?", const="true", default="false", help="clean: removes the checkpoints")
    parser.add_argument("--last", metavar="COUNT", default="30", help="list, compare: only the newest so many; 0: all")
    parser.add_argument("--sweep", help="compare: only jobs of this sweep: its run id, its name, or latest")
    parser.add_argument("--out", metavar="FOLDER", help="compare: writes table.csv and curves.png into this folder")
    parser.add_argument("--folder", help="folder of checkpoints, or its URL; sync: of runs")
    parser.add_argument("--uri", help="tracking URI, or none; default: $MLFLOW_TRACKING_URI, then outputs/mlflow.db")
    return parser
