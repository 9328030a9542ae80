"""How the process of a verification ends is told in one line, with the file that holds its output."""

from pathlib import Path

import pytest

from runner.errors import ConfigError, EngineError
from runner.verify import record
from runner.verify.report import Verification


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Verification | None:
    monkeypatch.setattr(record, "WORKER", "tests.verify.fake_worker")
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("FAKE", kind)
    return record.run_child(folder, folder / "verify.log", None)


def test_a_process_that_is_done_leaves_its_result_and_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch, "verification") is None
    assert (tmp_path / "verify.log").read_text() == "said something\n"


@pytest.mark.parametrize(
    ("kind", "error", "shown"),
    [
        ("invalid", ConfigError, "^why$"),
        ("failed", EngineError, "^why .*its output is in .*verify.log"),
        ("killed", EngineError, "verify's process was killed by signal 9; its output is in .*verify.log"),
        ("crash", EngineError, "verify's process exited with code 7; its output is in .*verify.log"),
    ],
)
def test_a_process_that_fails_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception], shown: str
) -> None:
    with pytest.raises(error, match=shown) as caught:
        run(tmp_path, monkeypatch, kind)
    assert "\n" not in str(caught.value)
