"""A short campaign of equal and hostile names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.forks import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="cases are forked")


def campaign(cases: int) -> str:
    command = [sys.executable, "-m", "tests.campaign", "names", "--cases", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_equal_names_get_folders_of_their_own_and_hostile_ones_control_no_terminal() -> None:
    assert "names: 12 of 12 held" in campaign(12)


@pytest.mark.nightly
def test_two_sweeps_of_one_second_have_parents_of_their_own() -> None:
    assert "names: 20 of 20 held" in campaign(20)
