"""A tracking URI that can't work is refused with its key, without its password, before MLflow is imported."""

import pytest

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError
from runner.tracking import location


@pytest.fixture(autouse=True)
def _no_outer_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)


@pytest.mark.parametrize(
    "given",
    [
        "ftp://nowhere",
        "HTTP://host",
        "s3://bucket/runs",
        "",
        "./mlruns",
        "file:///data/mlruns",
        "C:\\runs",
        "tracking:5000",
        "http://",
        "sqlite:runs.db",
        "sqlite://runs.db",
        "sqlite:///:memory:",
        "sqlite+pysqlcipher:///runs.db",
        "postgresq://ann:secret@h/d",
    ],
)
def test_what_mlflow_can_not_take_is_refused_in_one_line(given: str) -> None:
    with pytest.raises(ConfigError) as error:
        location.check(TrackingConfig(uri=given))
    text = str(error.value)
    assert text.startswith("tracking.uri=")
    assert "is no tracking URI" in text
    assert "\n" not in text
    assert "secret" not in text


@pytest.mark.parametrize(
    "given",
    [
        "sqlite:///runs.db",
        "sqlite+pysqlite:////a%3Fb/runs.db",
        "sqlite:////data/runs.db?timeout=3",
        "http://host:5000",
        "https://ann:secret@host/mlflow",
        "http://[::1]:5000",
        "databricks",
        "databricks://profile",
    ],
)
def test_what_mlflow_takes_passes(given: str) -> None:
    location.check(TrackingConfig(uri=given))


def test_the_variable_is_named_where_it_gives_the_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "ftp://ann:secret@host")
    with pytest.raises(ConfigError, match=r"^MLFLOW_TRACKING_URI=ftp://ann:\*\*\*@host:"):
        location.check(TrackingConfig())
    location.check(TrackingConfig(uri="sqlite:///runs.db"))
    location.check(TrackingConfig(writers=[]))


def test_a_folder_of_files_passes_where_mlflow_is_told_to_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    location.check(TrackingConfig(uri="./mlruns"))
