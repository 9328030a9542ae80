"""Restarts: how many, after which wait, and after which ends there is none."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.cluster import checks, restarts
from runner.cluster.team import ProcessError
from runner.config.schema import ClusterConfig
from runner.errors import EXIT_FINAL, EXIT_REFUSED, ConfigError, EngineError, NotFiniteError, PassingError


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Takes the place of waiting; returns the seconds."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def ends(*codes: int, notes_at: int | None = None) -> tuple[list[str], int]:
    """Runs something that ends with these codes; returns the earlier ends as passed, and the code."""
    earlier: list[str] = []

    def start(variables: Mapping[str, str]) -> int:
        earlier.append(variables[restarts.BEFORE_VARIABLE])
        if len(earlier) == notes_at:
            (Path(variables[restarts.FOLDER_VARIABLE]) / "final").write_text("the loss is nan")
        return codes[len(earlier) - 1]

    return earlier, restarts.run(start, 3)


def test_a_lost_run_is_started_again_with_back_off_until_it_ends_well(waits: list[float]) -> None:
    earlier = ["", "ended with exit code 1", "killed by SIGKILL", "killed by SIGKILL"]
    assert ends(1, -9, 137, 0) == (earlier, 0)
    assert waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("codes", "notes_at", "starts", "returned"),
    [((2, 0), None, 1, 2), ((2, 0), 1, 1, 2), ((1, 1, 0), 2, 2, EXIT_FINAL), ((0, 0), None, 1, 0)],
)
def test_an_invalid_config_and_a_nan_are_final_and_a_scheduler_can_tell_them_from_a_loss(
    codes: tuple[int, ...], notes_at: int | None, starts: int, returned: int
) -> None:
    earlier, code = ends(*codes, notes_at=notes_at)
    assert (len(earlier), code) == (starts, returned)


def test_what_may_pass_is_tried_again_and_an_invalid_config_after_it_is_final() -> None:
    starts: list[int] = []

    def start(variables: Mapping[str, str]) -> int:
        starts.append(1)
        if len(starts) <= 2:
            (Path(variables[restarts.FOLDER_VARIABLE]) / "passing").write_text("the run is in use")
        return EXIT_REFUSED

    assert restarts.run(start, 5) == EXIT_REFUSED
    assert len(starts) == 3


@pytest.mark.parametrize(
    ("error", "code", "noted"),
    [
        (PassingError("the run is in use"), 2, ["passing"]),
        (PermissionError(13, "Permission denied", "/y"), 2, ["passing"]),
        (ConfigError("invalid"), 2, ["final"]),
        (ProcessError("process 1 has an invalid config", 2), 2, []),
        (EngineError("a device is lost"), 1, []),
        (NotFiniteError(3, float("nan")), 1, ["final"]),
    ],
)
def test_a_process_notes_what_a_restart_would_meet_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, noted: list[str]
) -> None:
    from runner.cli.app import _note_for_restarts

    monkeypatch.setenv(restarts.FOLDER_VARIABLE, str(tmp_path))
    _note_for_restarts(error, "why", code)
    assert [path.name for path in tmp_path.iterdir()] == noted


def test_there_is_an_end_to_restarts(capsys: pytest.CaptureFixture[str]) -> None:
    earlier, code = ends(1, 1, 1, 1, 0)
    assert (len(earlier), code) == (4, 1)
    assert "ended with exit code 1, after 3 restarts (cluster.restarts)" in capsys.readouterr().err


def test_a_restart_would_return_to_a_step_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(restarts.FOLDER_VARIABLE, raising=False)
    config = ClusterConfig(name="local", processes=2, restarts=3)
    checks._check_restarts(config, "/checkpoints/aaaa")
    checks._check_restarts(config, "/home/ann@work/checkpoints/aaaa")
    with pytest.raises(ConfigError, match=r"each restart would return .*; set cluster\.restarts=0"):
        checks._check_restarts(config, "/checkpoints/aaaa@10")
    checks._check_restarts(ClusterConfig(restarts=3), "/checkpoints/aaaa@10")
