"""`python -m runner.supervise -- <command>`, with commands that stand for a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli import supervise as command
from runner.cluster import restarts
from tests import forks
from tests.proc import until

RUN = ["resume=auto", "name=exp1"]

# Dies as many times as the first argument says, one start after the other.
DIES = """
import os, pathlib, signal, sys
starts = pathlib.Path("starts")
count = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(count + 1))
if count < int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "needs a command; write python -m runner.supervise -- python -m runner resume=auto name=exp1"),
        (["--restarts", "3"], "needs a command"),
        (["--", "python", "-m", "runner"], "add resume=auto name=<name> to the command"),
        (["--", "python", "resume=latest"], "add resume=auto name=<name> to the command"),
        (["--", "python", *RUN, "cluster.restarts=x"], "cluster.restarts=x: must be an integer of at least 0"),
        (["--", "/no/such/program", *RUN], "/no/such/program can't be started"),
    ],
)
def test_an_invalid_command_line_is_one_line(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert problem in capsys.readouterr().err


def test_a_command_that_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.0)
    run = ["--", sys.executable, "-c", DIES, "2", *RUN]
    assert command.main(run) == 0
    assert (tmp_path / "starts").read_text() == "3"
    (tmp_path / "starts").unlink()
    assert command.main([*run[:-3], "9", *RUN, "cluster.restarts=1"]) == 128 + signal.SIGKILL
    assert (tmp_path / "starts").read_text() == "2"


def test_a_signal_reaches_the_command_and_ends_both(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "runner.supervise", "--", sys.executable, "-c"]
    line += ["import pathlib, time; pathlib.Path('there').touch(); time.sleep(60)", *RUN]
    process = subprocess.Popen(line, cwd=tmp_path, env={"PYTHONPATH": str(forks.ROOT)}, stderr=subprocess.PIPE)
    until((tmp_path / "there").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert process.stderr is not None
    assert b"starting the run again" not in process.stderr.read()
    process.stderr.close()
