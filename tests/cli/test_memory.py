"""A limit of the process's memory that a library's import runs into."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_an_import_over_a_limit_of_memory_is_a_line_that_says_memory(tmp_path: Path) -> None:
    limit = 1_500_000 << 10
    done = subprocess.run(
        [sys.executable, "-m", "runner", "dataset=digits", "tracking=none", "mesh=single"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: out of memory on this machine" in done.stderr
