"""Command line of `python -m runner.compare`, which compares recorded runs."""

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
    # Imports MLflow.
    show = late("runner.compare.show")

_POINTS_HEADER = b"run_id,run,metric,"


def main(arguments: Sequence[str]) -> int:
    """Compares the runs that the command line selects.

    Args:
      arguments: the command line without the program.

    Returns:
      The process's exit code: 0 done, 1 the store failed, 2 the command line is invalid.
    """
    try:
        options = _parser().read(arguments)
        if options.out:
            folders.check("--out", options.out.absolute())
        if options.points:
            _check_points_file(options.points)
        if options.diff:
            return show.diff(options)
        return show.compare(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


def _check_points_file(path: Path) -> None:
    """Rejects a file of points that could not be written, or that has other content.

    Raises:
      ConfigError: it exists and is not a file of points, or its folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise invalid("--points", path, problem="its folder does not exist", fix="set --points points.csv")
    if path.is_dir():
        raise invalid("--points", path, problem="is a folder", fix="set --points points.csv")
    if path.exists() and path.stat().st_size and not path.read_bytes().startswith(_POINTS_HEADER):
        raise invalid("--points", path, problem="the file exists and has other content", fix="choose a new file")


def _parser() -> Parser:
    parser = Parser(
        "runner.compare",
        "Compares recorded runs: the keys in which they differ, their results, and plots.",
        ["--sweep latest --out outputs/compare", "--diff latest 3f2a"],
    )
    parser.add_argument("--experiment", action="append", default=[], help="only runs of this experiment; repeatable")
    parser.add_argument("--sweep", help="only jobs of this sweep: its run id, its name, or latest")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY[=VALUE]", help="such as runner.mesh=batch8")
    parser.add_argument("--metric", action="append", default=[], metavar="TEST", help="such as 'eval/loss<0.3'")
    parser.add_argument("--status", action="append", default=[], help="such as FINISHED; repeatable")
    parser.add_argument(
        "--show", action="append", default=[], metavar="METRIC", help="metrics to show, instead of the usual ones"
    )
    parser.add_argument("--sort", help="a metric or a column's key; default: the metric that judges the runs' task")
    parser.add_argument("--reverse", action="store_true", help="worst first")
    parser.add_argument("--no-fold", action="store_true", help="one line per seed")
    parser.add_argument("--out", type=Path, help="writes table.csv, table.md and the plots into this folder")
    parser.add_argument(
        "--run", action="append", default=[], help="only this run: its id or its start, its name, latest"
    )
    parser.add_argument("--points", type=Path, metavar="FILE", help="writes every point of the runs into a CSV file")
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("RUN", "RUN"),
        help="differences of two runs' configs, results and plans: ids or their start, names, or latest",
    )
    parser.add_argument("--uri", help="tracking URI; default: $MLFLOW_TRACKING_URI, then outputs/mlflow.db")
    return parser
