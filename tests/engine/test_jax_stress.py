"""Eight virtual devices on few cores: thousands of steps don't starve XLA's all-reduces of threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("loop", "steps"), [("host", 3000), ("device", 10_000)])
def test_thousands_of_steps_at_eight_devices_end_well(loop: str, steps: int) -> None:
    # Without the threads that the engine asks for, the process aborts within the first thousands, exit code -6.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PJRT_", "XLA_"))}
    command = [sys.executable, "-m", "tests.engine.jax_stress_worker", str(steps), loop]
    done = forks.run(
        command,
        library="jax",
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, loss = done.stdout.split()
    assert int(count) == steps
    assert float(loss) < 0.1
