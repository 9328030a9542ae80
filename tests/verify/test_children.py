"""How a side's process ends is told in one line, with the file that holds its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.errors import ConfigError, EngineError
from runner.verify.children import Outcome, run_child

ROOT = Path(__file__).parents[2]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Outcome:
    monkeypatch.setenv("FAKE", kind)
    monkeypatch.chdir(ROOT)
    return run_child("mesh", folder, folder / "mesh.log", "tests.verify.fake_worker")


def test_a_side_that_is_done_says_what_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, "done")["noise"] == 1.0
    assert (tmp_path / "mesh.log").read_text() == "said something\n"


@pytest.mark.parametrize(
    ("kind", "error", "shown"),
    [
        ("refused", ConfigError, "^why$"),
        ("failed", EngineError, "^why .*mesh process; its output is in .*mesh.log"),
        ("killed", EngineError, "mesh process was killed by signal 9; its output is in .*mesh.log"),
        ("crash", EngineError, "mesh process exited 7; its output is in .*mesh.log"),
    ],
)
def test_a_side_that_fails_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception], shown: str
) -> None:
    with pytest.raises(error, match=shown) as caught:
        run(tmp_path, monkeypatch, kind)
    assert "\n" not in str(caught.value)
