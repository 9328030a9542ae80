"""A short campaign of failing storage, one case of each kind, and what the campaign itself takes for broken."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign.training import Done, Stored, judge
from tests.forks import ROOT

FINE = Done(0, (), 1.0, [("loss", 1, 0.5), ("loss", 2, 0.25)], 0.0)
NEXT = Done(0, (), 1.0, [], 0.0)
HELD = Stored("FINISHED", [("loss", 1, 0.5), ("loss", 2, 0.25)])


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="cases are forked")
def test_nothing_is_lost_to_a_disk_that_fails() -> None:
    command = [sys.executable, "-m", "tests.campaign", "storage", "--cases", "9"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "storage: 9 of 9 held" in done.stdout


@pytest.mark.parametrize(
    ("done", "found", "told"),
    [
        (FINE, replace(HELD, points=HELD.points[:1]), "1 of 2 points are missing, as ('loss', 2, 0.25)"),
        (FINE, replace(HELD, points=[*HELD.points, HELD.points[0]]), "1 points are stored twice or with"),
        (
            FINE,
            replace(HELD, points=[("loss", 1, 0.5), ("loss", 2, 9.0)]),
            "1 points are stored twice or with other values, as ('loss', 2, 9.0)",
        ),
        (FINE, replace(HELD, status="KILLED"), "exit code 0 and status KILLED"),
        (replace(FINE, code=1, lines=("error: x",)), HELD, "exit code 1 and status FINISHED"),
        (replace(FINE, code=1), replace(HELD, status="FAILED"), "exit code 1, and the last line is ()"),
        (replace(FINE, code=None), HELD, "exit codes None and 0"),
        (replace(FINE, lines=("Traceback (most recent call last):",)), HELD, "a traceback"),
        (replace(FINE, lines=("tracking: away",) * 99), HELD, "99 lines on stderr"),
        (replace(FINE, lines=("tracking: 3 records are lost",)), HELD, "points are lost and the exit code is 0"),
        (replace(FINE, longest_wait=2.0), HELD, "a step waited 2.00 s"),
        (FINE, HELD, "exit code 0 and the last checkpoint is of step 0"),
    ],
)
def test_what_a_run_must_not_do_is_told(tmp_path: Path, done: Done, found: Stored, told: str) -> None:
    assert any(told in wrong for wrong in judge(done, NEXT, found, tmp_path))
