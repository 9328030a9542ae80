"""No more memory than the state and one variable: while it is drawn, saved and loaded by shards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process's peak")
def test_a_state_is_drawn_saved_and_loaded_within_its_own_size() -> None:
    """Of 581 MiB, of which the C library's heap may keep 32; twice as much is held where whole copies are made."""
    command = [sys.executable, "-m", "benchmarks.memory", "--most", "1.3", "model.dim=512", "model.depth=16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
