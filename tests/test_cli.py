"""Exit codes of what ends a command other than its own errors."""

from __future__ import annotations

import pytest

from runner import cli


@pytest.mark.parametrize(
    ("inner", "code", "shown"),
    [(KeyboardInterrupt(), 130, "interrupted"), (ValueError("it"), 2, "error: an exception")],
)
def test_a_ctrl_c_that_a_library_put_into_another_error_is_one(
    inner: BaseException, code: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(_: object) -> bool:
        raise SystemError("an exception was set") from inner

    monkeypatch.setattr(cli, "_run", ended)
    monkeypatch.setattr("sys.argv", ["runner"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    assert cli.run_command(lambda *_: None) == code
    assert capsys.readouterr().err.startswith(shown)
