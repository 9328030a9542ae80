"""A signal ends a command with its code from the first line to the last, with a line and no traceback."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.host.signals import SIGNALS, StopRequest

ROOT = Path(__file__).resolve().parents[2]
START = "from runner.cli import entry\nimport os, sys, time\nfrom pathlib import Path\n"
CALL = "entry.call('__main__', 'body')\n"
WAITING = f"{START}def body():\n    print('here', flush=True)\n    time.sleep(60)\n    return 0\n{CALL}"
SWALLOWING = START + (
    "def body():\n    try:\n        print('here', flush=True)\n        time.sleep(60)\n"
    "    except Exception:\n        return 0\n    return 0\n" + CALL
)
IMPORTING = START + (
    "from runner.host.signals import current\ndef body():\n    with current().importing(at_once=bool(sys.argv[1:])):\n"
    "        print('here', flush=True)\n        time.sleep(0.5)\n        print('imported', flush=True)\n    return 0\n"
    + CALL
)
SAVING = START + (
    "from runner.host.signals import current\ndef body():\n    with current().deferring():\n"
    "        print('here', flush=True)\n        while not current().requested:\n            time.sleep(0.01)\n"
    "        end = time.monotonic() + 0.4\n        while time.monotonic() < end:\n            time.sleep(0.01)\n"
    "        print('saved', flush=True)\n    current().raise_if_requested()\n" + CALL
)


@pytest.fixture(autouse=True)
def _hangup() -> Iterator[None]:
    """What is started here takes a hangup as it does by default, also where the tests were started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def started(text: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(  # a real start: of the handlers themselves
        [sys.executable, "-c", text, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def ended(process: subprocess.Popen[str], *signums: int) -> tuple[int, str, str]:
    for signum in signums:
        process.send_signal(signum)
        time.sleep(0.03)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_a_signal_cuts_no_import_off_but_may_end_the_process_at_once() -> None:
    assert ended(started(IMPORTING), signal.SIGINT) == (130, "imported\n", "interrupted\n")
    assert ended(started(IMPORTING, "at once"), signal.SIGTERM) == (143, " interrupted\n", "")


@pytest.mark.parametrize(("text", "signum"), [*((WAITING, signum) for signum in SIGNALS), (SWALLOWING, signal.SIGINT)])
def test_a_signal_is_an_exit_code_and_a_line_whatever_becomes_of_the_exception(text: str, signum: int) -> None:
    assert ended(started(text), signum) == (128 + signum, "", "interrupted\n")


def test_signals_that_come_together_are_the_first_one() -> None:
    assert ended(started(SAVING), signal.SIGTERM, signal.SIGINT) == (143, "saved\n", "interrupted\n")


def test_a_second_signal_a_while_later_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with StopRequest() as stop, stop.deferring():
        monkeypatch.setattr(signal, "signal", lambda signum, _: ends.append(signum))
        monkeypatch.setattr(signal, "raise_signal", lambda _: None)
        stop._note(signal.SIGINT, None)
        now[0] += 0.05
        stop._note(signal.SIGTERM, None)
        assert not ends
        now[0] += 2.0
        stop._note(signal.SIGINT, None)
        assert ends == [signal.SIGINT]
        monkeypatch.undo()
    assert stop.signum == signal.SIGINT


def test_under_nohup_a_closed_terminal_is_nothing() -> None:
    text = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + SAVING
    process = started(text)
    process.send_signal(signal.SIGHUP)
    assert ended(process, signal.SIGTERM)[0] == 128 + signal.SIGTERM
