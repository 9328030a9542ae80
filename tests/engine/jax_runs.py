"""Runs of the engine comparison, and the subprocess that makes one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine import cases

ROOT = Path(__file__).parents[2]
Arrays = dict[str, np.ndarray]
FAST_CODE = {"XLA_FLAGS": ""}  # over what tests/conftest.py sets

# Smooth: at a ReLU's kink the last bit of a sum decides whether a whole column of gradients counts.
MLP = {"target": "runner.model.mlp.sequential", "options": {"hidden": [128], "activation": "tanh"}}
VIT = {"target": "runner.model.vit.build", "options": {"depth": 1, "dropout": 0.1}, "batch": 64, "steps": 20}
RESNET = {
    "target": "runner.model.resnet.build",
    "options": {"widths": [8, 16], "activation": "tanh"},
    "batch": 64,
    "steps": 10,
}
CONVNET = {"target": "runner.model.convnet.build", "options": {"dropout": 0.5}, "batch": 64, "steps": 10}


def smooth() -> list[dict[str, Any]]:
    """Every optimizer on an MLP; the styles of Keras; a transformer and a residual network."""
    runs = [{**MLP, "name": name, "optimizer": name} for name in cases.OPTIMIZERS]
    runs += [{**MLP, "name": style, "target": f"runner.model.mlp.{style}"} for style in ("subclassed", "explicit")]
    return [*runs, {**VIT, "name": "vit"}, {**RESNET, "name": "resnet"}]


def work(
    out: Path,
    engine: str,
    axes: dict[str, int] | None,
    runs: list[dict[str, Any]],
    fast_code: bool = False,
    **more: Any,
) -> Arrays:
    """Runs the worker and returns its arrays; with `fast_code` compiled as users' runs are."""
    request = {"engine": engine, "axes": axes, "runs": runs, "layout": "replicated"} | more
    command = [sys.executable, "-m", "tests.engine.jax_worker", str(out), json.dumps(request)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (FAST_CODE if fast_code else {})
    library = "tensorflow" if engine == "keras_dtensor" else "jax"
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


def answer(program: str, *questions: Any) -> Any:
    """Runs the text of a program in a process that has JAX; what it prints and is asked is JSON."""
    command = [sys.executable, "-c", program, *map(json.dumps, questions)]
    return json.loads(forks.run(command, library="jax", cwd=ROOT, check=True).stdout)


def answers(program: str, *questions: Any) -> Any:
    """Returns a module's fixture: what `answer` gives, asked once."""

    @pytest.fixture(scope="module")
    def found() -> Any:
        return answer(program, *questions)

    return found


def relative(expected: Arrays, got: Arrays, key: str) -> float:
    """Returns the largest relative difference of two arrays of losses."""
    return float(np.max(np.abs(got[key] - expected[key]) / np.abs(expected[key])))
