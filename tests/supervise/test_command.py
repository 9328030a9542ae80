"""`python -m runner.supervise -- <command>`, with commands that stand for a run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.cli.commands import run as run_command
from runner.cluster import restarts
from runner.host.signals import TOGETHER_S
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

# Takes SIGTERM as a request, and ends well.
ENDS_WELL = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "

# Ends well at the second SIGTERM.
TAKES_TWO = """
received = []
def take(*_):
    received.append(1)
    pathlib.Path("first").touch()
signal.signal(signal.SIGTERM, take)
pathlib.Path("there").touch()
end = time.monotonic() + 60.0
while len(received) < 2 and time.monotonic() < end:
    time.sleep(0.01)
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
    assert run_command("runner.cli.supervise", arguments) == 2
    assert problem in capsys.readouterr().err


def test_a_command_that_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.0)
    run = ["--", sys.executable, "-c", DIES, "2", *RUN]
    assert run_command("runner.cli.supervise", run) == 0
    assert (tmp_path / "starts").read_text() == "3"
    (tmp_path / "starts").unlink()
    assert run_command("runner.cli.supervise", [*run[:-3], "9", *RUN, "cluster.restarts=1"]) == 128 + signal.SIGKILL
    assert (tmp_path / "starts").read_text() == "2"


def begun(folder: Path, body: str) -> subprocess.Popen[bytes]:
    """Starts a supervisor of a program, and returns when that has made the file `there`."""
    program = f"import pathlib, signal, sys, time\n{body}\n"
    line = [sys.executable, "-m", "runner.supervise", "--", sys.executable, "-c", program, *RUN]
    process = subprocess.Popen(line, cwd=folder, env={"PYTHONPATH": str(forks.ROOT)}, stderr=subprocess.PIPE)
    until((folder / "there").exists)
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    _, err = process.communicate(timeout=30)
    return process.returncode, err


@pytest.mark.parametrize(("act", "code"), [("", 128 + signal.SIGTERM), (ENDS_WELL, 0)], ids=["dies", "ends well"])
def test_a_signal_reaches_the_command_and_ends_both(tmp_path: Path, act: str, code: int) -> None:
    process = begun(tmp_path, f"{act}pathlib.Path('there').touch(); time.sleep(60)")
    process.send_signal(signal.SIGTERM)
    found, err = ended(process)
    assert found == code
    assert err == (b"interrupted\n" if code else b"")


def test_every_signal_reaches_the_command_which_the_supervisor_outlives(tmp_path: Path) -> None:
    # A second signal later than this is a second wish to end.
    process = begun(tmp_path, TAKES_TWO)
    process.send_signal(signal.SIGTERM)
    until((tmp_path / "first").exists)
    time.sleep(1.2 * TOGETHER_S)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, b"")


def test_a_signal_ends_the_wait_before_a_restart(tmp_path: Path) -> None:
    process = begun(tmp_path, "pathlib.Path('there').touch(); sys.exit(1)")
    assert process.stderr is not None
    assert b"starting the run again in 1 s" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (128 + signal.SIGTERM, b"interrupted\n")
