"""Compares recorded runs: a table, plots, and the differences of two runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from runner.cli.app import EXIT_FAILED, EXIT_REFUSED
from runner.config.errors import ConfigError, TrackingError, did_you_mean
from runner.config.search_path import FLAG
from runner.host import folders
from runner.host.late import late

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
        options, unknown = _parser().parse_known_args(arguments)
        if unknown:
            raise _unknown(unknown[0])
        if options.out:
            folders.check("--out", options.out.absolute())
        return show.diff(options) if options.diff else show.compare(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Refuses in one line what argparse would tell under the whole usage."""
        told = message.removeprefix("argument ").replace(": ", " is refused: ", 1)
        raise ConfigError(f"{told}; see python -m runner.compare --help")


def _unknown(argument: str) -> ConfigError:
    flags = [flag for action in _parser()._actions for flag in action.option_strings if flag.startswith("--")]
    if argument.startswith(FLAG) or not argument.startswith("-"):
        mend = "compare reads recorded runs and takes no config; leave it out, or choose runs by flags, as --tag"
    else:
        mend = f"flags are {', '.join(flags)}; {did_you_mean(argument.partition('=')[0], flags, 'see --help')}"
    return ConfigError(f"{argument} is refused: {mend}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m runner.compare",
        description="Compares recorded runs: what they differ in as columns, results beside it, and plots.",
        epilog="python -m runner.compare --sweep latest --out outputs/compare",
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
    parser.add_argument("--diff", nargs=2, metavar=("RUN", "RUN"), help="two runs' configs, results and plans")
    parser.add_argument("--uri", help="tracking URI; else $MLFLOW_TRACKING_URI, else outputs/mlflow.db")
    return parser
