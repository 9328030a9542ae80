"""How a side's process ends is told in one line, with the file that holds its output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.errors import ConfigError, EngineError
from runner.verify import children
from runner.verify.children import SideResult, run_children

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "WORKER", "tests.verify.fake_worker")
    monkeypatch.chdir(ROOT)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> SideResult:
    monkeypatch.setenv("FAKE", kind)
    return run_children(["mesh"], folder, folder)["mesh"]


def test_a_side_that_is_done_says_what_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, "done")["noise"] == 1.0
    assert (tmp_path / "verify-mesh.log").read_text() == "said something\n"


@pytest.mark.parametrize(
    ("kind", "error", "shown"),
    [
        ("invalid", ConfigError, "^why mesh$"),
        ("failed", EngineError, "^why mesh .*mesh process; its output is in .*verify-mesh.log"),
        ("killed", EngineError, "mesh process was killed by signal 9; its output is in .*verify-mesh.log"),
        ("crash", EngineError, "mesh process exited with code 7; its output is in .*verify-mesh.log"),
    ],
)
def test_a_side_that_fails_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception], shown: str
) -> None:
    with pytest.raises(error, match=shown) as caught:
        run(tmp_path, monkeypatch, kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("first", "other"), [("reference", "mesh"), ("mesh", "reference")])
def test_a_side_whose_config_is_invalid_ends_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, other: str
) -> None:
    monkeypatch.setenv("FAKE", f"{other}: sleep, {first}: invalid")
    with pytest.raises(ConfigError, match=f"^why {first}$"):
        run_children(["reference", "mesh"], tmp_path, tmp_path, concurrency=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
