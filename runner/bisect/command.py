"""Command line of `python -m runner.bisect`: finds where two recorded runs part, or where a NaN began."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, ConfigError, DataError, EngineError, invalid
from runner.host.late import late
from runner.host.parser import Parser

if TYPE_CHECKING:
    from runner.bisect import search
else:
    # Imports NumPy.
    search = late("runner.bisect.search")


def main(arguments: Sequence[str]) -> int:
    """Compares two recorded runs step by step, or looks for the first NaN of one.

    Args:
      arguments: the command line without the program.

    Returns:
      The process's exit code: 0 done, 1 a step could not be computed, 2 the command line is invalid.
    """
    parser = _parser()
    try:
        options = parser.read(arguments)
        if options.run is None:
            raise invalid("run", None, problem="runner.bisect needs a recorded run", fix="set run=<run id>")
        tolerance = _tolerance(options.tolerance)
        for line in search.bisect(options.run, options.against, options.folder, tolerance):
            print(line, flush=True)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except (DataError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE


def _tolerance(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise invalid("tolerance", text, problem="must be a number from 0 to 1", fix="set tolerance=0.001")
    return value


def _parser() -> Parser:
    parser = Parser(
        "runner.bisect",
        "Names the first step, variable and layer at which two recorded runs part, or where a NaN began, and the "
        "examples of that batch.",
        ["run=3f2a against=9b01", "run=3f2a"],
    )
    parser.add_argument("--run", help="an id or its start, a name, or latest")
    parser.add_argument("--against", help="the other run; without it, the first NaN or Inf of the run is searched")
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        help="smallest difference that counts, relative to a variable's norm; default: 0, and 0.001 if the meshes or "
        "engines differ",
    )
    parser.add_argument("--folder", help="folder of checkpoints; default: outputs/checkpoints")
    return parser
