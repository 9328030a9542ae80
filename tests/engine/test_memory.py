"""No more memory than the state and one variable: while it is drawn, saved and loaded by shards."""

import sys

import pytest

from tests import forks


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process's peak")
def test_a_state_is_drawn_saved_and_loaded_within_its_own_size() -> None:
    """Of 581 MiB, of which the C library's heap may keep 32; twice as much is held where whole copies are made."""
    forks.python("-m", "benchmarks.memory", "--most", "1.3", "model.dim=512", "model.depth=16")
