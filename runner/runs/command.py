"""What `python -m runner.runs` reads from its command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import EXIT_FAILED, EXIT_REFUSED, ConfigError, TrackingError, did_you_mean, invalid
from runner.host.late import late
from runner.host.parser import Parser, truth
from runner.runs.choice import Choice, age, statuses

if TYPE_CHECKING:
    from runner.runs import act
else:
    act = late("runner.runs.act")  # with MLflow

_ACTIONS = ("list", "clean", "keep", "release")


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists recorded runs, or does with them what the command line asks for.

    Args:
      arguments: null: the process's own.

    Returns:
      The process's exit code: 0 done, 1 the store or the disk failed, 2 the command line was refused.
    """
    parser = _parser()
    try:
        options = parser.read(sys.argv[1:] if arguments is None else arguments)
        choice = Choice(
            runs=tuple(options.run),
            older=None if options.older is None else age("older", options.older),
            keep=None if options.keep is None else _count("keep", options.keep),
            statuses=statuses(options.status),
        )
        place = act.Place(options.uri, options.folder)
        if options.action == "list":
            return act.show(place, choice, _count("last", options.last))
        if options.action == "clean":
            return act.clean(
                place, choice, really=truth("yes", options.yes), records=truth("records", options.records)
            )
        if options.action in ("keep", "release"):
            return act.keep(place, choice, kept=options.action == "keep")
        fix = did_you_mean(options.action, _ACTIONS, f"see {parser.prog} --help")
        raise ConfigError(f"{options.action}: one of {', '.join(_ACTIONS)}; {fix}")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _count(key: str, text: str) -> int:
    if not text.isdecimal():
        raise invalid(key, text, problem="how many runs, a whole number from 0 on", fix=f"set {key}=5")
    return int(text)


def _parser() -> Parser:
    parser = Parser(
        "runner.runs",
        "Recorded runs with their checkpoints and what these take of the disk. clean says what it would remove, and "
        "with yes=true does so; the run in the tracking store stays.",
        [
            "status=failed,killed",
            "clean older=30d keep=5",
            "clean status=failed,killed yes=true",
            "keep run=latest",
        ],
    )
    parser.add_argument("action", nargs="?", default="list", metavar="ACTION", help=", ".join(_ACTIONS))
    parser.add_argument("--run", action="append", default=[], help="an id or its beginning, a name, or latest")
    parser.add_argument("--older", metavar="AGE", help="runs that ended at least so long ago: 30d, 12h, 2w")
    parser.add_argument("--keep", metavar="COUNT", help="clean: leaves the newest so many runs with checkpoints")
    parser.add_argument("--status", action="append", default=[], help="as failed,killed")
    parser.add_argument("--yes", nargs="?", const="true", default="false", help="clean: does it")
    parser.add_argument(
        "--records", nargs="?", const="true", default="false", help="clean: deletes the runs in the store as well"
    )
    parser.add_argument("--last", metavar="COUNT", default="30", help="list: the newest so many; 0: all")
    parser.add_argument("--folder", type=Path, help="of checkpoints; else outputs/checkpoints")
    parser.add_argument("--uri", help="tracking URI, or none; else $MLFLOW_TRACKING_URI, else outputs/mlflow.db")
    return parser
