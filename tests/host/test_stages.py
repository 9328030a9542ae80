"""What a command does is said while it does it: in a log a line a stage, on a terminal a line that is replaced."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from runner.host import stages
from runner.host.outputs import warn


class Out(io.StringIO):
    """A standard output that is a terminal, or is none."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        """What was written, without what a clock says."""
        return re.sub(r"\d+\.\d s", "N s", self.getvalue())


@pytest.fixture(autouse=True)
def _speaking() -> Iterator[None]:
    stages.speak(wanted=True)
    yield
    stages.speak(wanted=False)


def out(monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> Out:
    made = Out(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


def test_in_a_log_a_line_is_there_while_its_stage_lasts_and_ends_with_the_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = out(monkeypatch)
    with caplog.at_level(logging.INFO), stages.stage("loading it"):
        assert shown.text == "loading it ..."
    assert shown.text == "loading it ... N s\n"
    assert re.fullmatch(r"loading it: \d\.\d s", caplog.messages[0])


def test_a_stage_in_another_ends_the_line_of_that_also_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = out(monkeypatch)
    with suppress(KeyError), stages.stage("outer"):
        with stages.stage("inner"):
            pass
        raise KeyError
    with stages.stage("next"):
        pass
    assert shown.text == "outer ... N s\ninner ... N s\nnext ... N s\n"


def test_a_warning_meanwhile_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = out(monkeypatch)
    with stages.stage("loading it"):
        warn("the disk is full")
        warn("and stays so")
    assert shown.text == "loading it ...\nloading it ... N s\n"
    assert capsys.readouterr().err == "warning: the disk is full\nwarning: and stays so\n"


def test_on_a_terminal_each_line_is_replaced_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = out(monkeypatch, terminal=True)
    for name in ("one", "two"):
        with stages.stage(name):
            pass
    assert shown.text == "one ...\r\x1b[2Ktwo ...\r\x1b[2K"
