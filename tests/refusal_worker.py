"""Refuses command lines one after another in one process: JSON lists of arguments in, what each printed out.

A command changes its process (logging, Hydra's globals, environment), so this is no work for pytest's own.
"""

import contextlib
import io
import json
import os
import sys
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from runner.cli.app import run_command
from runner.config.schema import RunConfig
from tests import hydra_reads


def invalid(args: list[str]) -> dict[str, Any]:
    """Runs one command line with a command that only notes that it was reached."""
    reached: list[RunConfig] = []

    def command(config: RunConfig, composed: DictConfig) -> None:
        del composed
        reached.append(config)

    out, err = io.StringIO(), io.StringIO()
    GlobalHydra.instance().clear()
    os.environ["HYDRA_FULL_ERROR"] = "0"
    sys.argv = ["runner", *args]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(command)
    return {"code": code, "reached": bool(reached), "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    hydra_reads.remember()
    results = [invalid(args) for args in json.load(sys.stdin)]
    heavy = sorted({"tensorflow", "tf_keras", "jax", "mlflow", "keras"} & set(sys.modules))
    json.dump({"results": results, "heavy": heavy}, sys.stdout)
