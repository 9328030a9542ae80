"""Answers command lines one by one: whether the config is refused, without running any command.

It reads `{"cwd": ..., "command": ..., "args": [...]}` a line, and writes what `tests.refusal_worker.refuse` found of
it, with the heavy modules that are imported by then, and the config that a command would have been given.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

from tests import refusal_worker

HEAVY = {"tensorflow", "tf_keras", "jax", "mlflow", "keras"}


def answer(args: list[str]) -> dict[str, Any]:
    """Returns what one command line came to; whatever it raises is part of that."""
    seen: list[str] = []
    real = refusal_worker.run_command

    def watching(command: Any) -> int:
        def noting(config: Any, composed: Any) -> None:
            seen.append(json.dumps(asdict(config), sort_keys=True, default=str))
            command(config, composed)

        return real(noting)

    refusal_worker.run_command = watching
    try:
        found = refusal_worker.invalid(args)
    except BaseException as error:
        found = {"code": None, "reached": False, "out": "", "err": f"Traceback: {type(error).__name__}: {error}"}
    finally:
        refusal_worker.run_command = real
    return found | {"heavy": sorted(HEAVY & set(sys.modules)), "config": seen[-1] if seen else ""}


def main() -> None:
    """Answers until the input ends; the answers go where stdout went, and nothing else does."""
    told = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for line in sys.stdin:
        asked = json.loads(line)
        os.chdir(asked["cwd"])
        with patch("runner.cli.prepare.command_module", return_value=asked["command"]):
            told.write(json.dumps(answer(asked["args"])) + "\n")
        told.flush()


if __name__ == "__main__":
    main()
