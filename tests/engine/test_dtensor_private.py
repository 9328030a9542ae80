"""Private interfaces of TensorFlow and tf_keras that the DTensor engine leans on are there, and do what they did."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_private_interface_does_what_the_engine_takes_it_for() -> None:
    command = [sys.executable, "-m", "tests.engine.private_worker"]
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": str(ROOT)}
    done = forks.run(command, library="tensorflow", cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == {}, f"changed in {found['versions']}: see runner/engine/dtensor/private.py"
