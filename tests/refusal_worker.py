"""Refuses command lines one after another in one process: JSON lists of arguments in, what each printed out.

A command changes its process (logging, Hydra's globals, environment), so this is no work for pytest's own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any
from unittest.mock import patch

from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from runner.cli.app import run_command
from runner.config.schema import RunConfig

_composed_mode = Hydra.get_mode


def _mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """Returns what `Hydra.get_mode` does, and composes the config for it only where it could set `hydra.mode`.

    That composition is half of the work of a command line that is rejected.
    """
    others = [override for override in overrides if not override.startswith("hydra.run.dir=")]
    if any("hydra" in override or "experiment" in override for override in others):
        return _composed_mode(hydra, config_name, overrides)
    return None


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
    with patch.object(Hydra, "get_mode", _mode):
        results = [invalid(args) for args in json.load(sys.stdin)]
    heavy = sorted({"tensorflow", "tf_keras", "jax", "mlflow", "keras"} & set(sys.modules))
    json.dump({"results": results, "heavy": heavy}, sys.stdout)
