"""What a command does is said while it does it, in one line per stage."""

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
    """A standard output."""

    @property
    def text(self) -> str:
        """What was written, without what a clock says."""
        return re.sub(r"\d+\.\d s", "N s", self.getvalue())


@pytest.fixture(autouse=True)
def _speaking() -> Iterator[None]:
    stages.speak(wanted=True)
    yield
    stages.speak(wanted=False)


def out(monkeypatch: pytest.MonkeyPatch) -> Out:
    made = Out()
    monkeypatch.setattr(sys, "stdout", made)
    return made


def test_a_line_is_there_while_its_stage_lasts_and_ends_with_the_seconds(
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
    assert shown.text == "outer ...\ninner ... N s\nouter ... N s\nnext ... N s\n"


def test_a_warning_meanwhile_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = out(monkeypatch)
    with stages.stage("loading it"):
        warn("the disk is full")
        warn("and stays so")
    assert shown.text == "loading it ...\nloading it ... N s\n"
    assert capsys.readouterr().err == "warning: the disk is full\nwarning: and stays so\n"


def test_a_long_stage_says_how_far_it_is_every_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = out(monkeypatch)
    clock = iter([0.0, 19.0, 21.0, 22.0, 50.0])
    monkeypatch.setattr(stages.time, "monotonic", lambda: next(clock))
    with stages.stage("planning", alone=True) as reached:
        for done in range(3):
            reached(f"{done} of 80")
    assert shown.getvalue() == "planning ...\nplanning: 1 of 80 ... 21.0 s\nplanning ... 50.0 s\n"
