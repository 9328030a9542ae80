"""The command `python -m runner.runs`: lists, compares, cleans and synchronizes runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from runner.cli import commands
from runner.cli.runs.request import ACTIONS, KEYS, read
from runner.errors import EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, ConfigError, TrackingError

_EXAMPLES = (
    "status=failed,killed",
    "compare sweep=latest out=outputs/compare",
    "clean older=30d keep=5",
    "clean status=failed,killed yes=true",
)


def main(arguments: Sequence[str]) -> int:
    """Lists recorded runs, or does with them what the command line asks for.

    Returns:
      The process's exit code: 0 done, 1 the store or the disk failed, 2 the command line is invalid.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        print(_help())
        return EXIT_DONE
    try:
        request = read(arguments)
        # It imports MLflow, which an error of the command line should not wait for.
        code: int = import_module("runner.cli.runs.act").run(request)
    except (ConfigError, TrackingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED if isinstance(error, ConfigError) else EXIT_FAILED
    return code


def _help() -> str:
    lines = ["usage: python -m runner.runs [action] [key=value ...]", "", "actions:"]
    lines += [f"  {name:8} {description}" for name, description in ACTIONS.items()]
    lines += ["", "keys:", *(f"  {f'{name}=':8} {description}" for name, description in KEYS.items())]
    lines += ["", "examples:", *(f"  python -m runner.runs {arguments}" for arguments in _EXAMPLES)]
    return "\n".join([*lines, "", "commands:", commands.listed()])
