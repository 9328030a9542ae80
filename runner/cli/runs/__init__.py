"""The command `python -m runner.runs`: lists, compares, cleans and synchronizes recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from runner.cli.runs.request import read


def main(arguments: Sequence[str]) -> int:
    """Does what a command line asks for; returns the process's exit code, and raises as `read` and `act.run` do."""
    request = read(arguments)
    # It imports MLflow, which an error of the command line should not wait for.
    code: int = import_module("runner.cli.runs.act").run(request)
    return code
