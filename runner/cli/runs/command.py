"""The command `python -m runner.runs`: lists, compares, cleans and synchronizes runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from runner.cli.runs.request import read
from runner.errors import EXIT_FAILED, EXIT_REFUSED, ConfigError, TrackingError


def main(arguments: Sequence[str]) -> int:
    """Lists recorded runs, or does with them what the command line asks for.

    Returns:
      The process's exit code: 0 done, 1 the store or the disk failed, 2 the command line is invalid.
    """
    try:
        request = read(arguments)
        # It imports MLflow, which an error of the command line should not wait for.
        code: int = import_module("runner.cli.runs.act").run(request)
    except (ConfigError, TrackingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED if isinstance(error, ConfigError) else EXIT_FAILED
    return code
