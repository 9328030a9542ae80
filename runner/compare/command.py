"""Compares recorded runs: a table, plots, and the differences of two runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import EXIT_FAILED, EXIT_REFUSED, ConfigError, TrackingError, invalid
from runner.host import folders
from runner.host.late import late
from runner.host.parser import Parser

if TYPE_CHECKING:
    from runner.compare import show
else:
    show = late("runner.compare.show")  # with MLflow


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares what the command line asks for.

    Args:
      arguments: null: the process's own.

    Returns:
      The process's exit code: 0 done, 1 the store failed, 2 the command line was refused.
    """
    try:
        options = _parser().read(sys.argv[1:] if arguments is None else arguments)
        if options.out:
            folders.check("--out", options.out.absolute())
        if options.points:
            _check_file(options.points)
        return show.diff(options) if options.diff else show.compare(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _check_file(path: Path) -> None:
    """Refuses a file of points that could not be written, or that is none of ours.

    Raises:
      ConfigError: it is there and holds something else, or its folder is not there.
    """
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise invalid("--points", path, problem="a file in a folder that is there", fix="set --points points.csv")
    head = "run_id,run,metric,"
    if path.exists() and path.stat().st_size and not path.read_bytes().startswith(head.encode()):
        raise invalid("--points", path, problem="the file holds something else", fix="name a new file")


def _parser() -> Parser:
    parser = Parser(
        "runner.compare",
        "Compares recorded runs: what they differ in as columns, results beside it, and plots.",
        ["--sweep latest --out outputs/compare", "--diff latest 3f2a"],
    )
    parser.add_argument("--experiment", action="append", default=[], help="only runs of this experiment; repeatable")
    parser.add_argument("--sweep", help="only jobs of this sweep: its run id, its name, or latest")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY[=VALUE]", help="as runner.mesh=batch8")
    parser.add_argument("--metric", action="append", default=[], metavar="TEST", help="as 'eval/loss<0.3'")
    parser.add_argument("--status", action="append", default=[], help="as FINISHED; repeatable")
    parser.add_argument("--show", action="append", default=[], metavar="METRIC", help="columns, in place of the usual")
    parser.add_argument("--sort", help="a metric or a column's key; else the metric that the runs' task is judged by")
    parser.add_argument("--reverse", action="store_true", help="worst first")
    parser.add_argument("--no-fold", action="store_true", help="each seed on a line of its own")
    parser.add_argument("--out", type=Path, help="writes table.csv, table.md and the plots into this folder")
    parser.add_argument(
        "--run", action="append", default=[], help="only this run: its id or its start, its name, latest"
    )
    parser.add_argument("--points", type=Path, metavar="FILE", help="writes every point of the runs into a CSV file")
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("RUN", "RUN"),
        help="two runs' configs, results and plans: ids or their beginnings, names, or latest",
    )
    parser.add_argument("--uri", help="tracking URI; else $MLFLOW_TRACKING_URI, else outputs/mlflow.db")
    return parser
