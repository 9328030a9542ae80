"""What a command makes of what ends it other than its own errors."""

from __future__ import annotations

import pytest

from runner.cli import app as cli
from runner.host.signals import interruption


def test_a_ctrl_c_that_a_library_put_into_another_error_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: object) -> list[str]:
        raise SystemError("an exception was set") from KeyboardInterrupt()

    monkeypatch.setattr(cli, "_read_arguments", ended)
    monkeypatch.setattr("sys.argv", ["runner"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemError) as found:
        cli.run_command(lambda *_: None)
    assert interruption(found.value) == 2


def test_an_error_of_a_library_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ended(_: object) -> list[str]:
        raise SystemError("an exception was set") from ValueError("it")

    monkeypatch.setattr(cli, "_read_arguments", ended)
    monkeypatch.setattr("sys.argv", ["runner"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    assert cli.run_command(lambda *_: None) == 2
    assert capsys.readouterr().err == "error: an exception was set\n"
