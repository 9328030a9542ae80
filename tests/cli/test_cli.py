"""What a command makes of what ends it other than its own errors."""

import pytest

from runner.cli import app as cli
from runner.host.signals import interruption


def test_an_error_of_a_library_is_a_line_and_a_ctrl_c_in_it_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    causes: list[BaseException] = [ValueError("it"), KeyboardInterrupt()]

    def ended(_: object) -> list[str]:
        raise SystemError("an exception was set") from causes.pop(0)

    monkeypatch.setattr(cli, "_read_arguments", ended)
    monkeypatch.setattr("sys.argv", ["runner"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    assert cli.run_command(lambda *_: None) == 2
    assert capsys.readouterr().err == "error: an exception was set\n"
    with pytest.raises(SystemError) as found:
        cli.run_command(lambda *_: None)
    assert interruption(found.value) == 2
