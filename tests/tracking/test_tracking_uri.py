"""A tracking URI that can't work is refused with its key, without its password, before MLflow is imported."""

from __future__ import annotations

import pytest

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError
from runner.tracking import uri


@pytest.fixture(autouse=True)
def _no_outer_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("ftp://nowhere", "did you mean http://?"),
        ("htp://host", "did you mean http://?"),
        ("HTTP://host", "did you mean http://?"),
        ("postgres://ann@h/d", "did you mean postgresql://?"),
        ("sqllite:///a.db", "did you mean sqlite:///<file>?"),
        ("s3://bucket/runs", "set tracking.uri=sqlite:///<file>"),
        ("foo:bar", "set tracking.uri=sqlite:///<file>"),
        ("", "remove it"),
        ("  ", "remove it"),
        ("./mlruns", "set tracking.uri=sqlite:///./mlruns.db"),
        ("file:///data/mlruns", "set tracking.uri=sqlite:////data/mlruns.db"),
        ("C:\\runs", "MLFLOW_ALLOW_FILE_STORE"),
        ("tracking:5000", "set tracking.uri=http://tracking:5000"),
        ("http://", "as http://host:5000"),
        ("http://host:99999", "as http://host:5000"),
        ("http:/host", "as http://host:5000"),
        ("sqlite:runs.db", "set tracking.uri=sqlite:///runs.db"),
        ("sqlite://runs.db", "set tracking.uri=sqlite:///runs.db"),
        ("sqlite:///:memory:", "set tracking.uri=sqlite:///runs.db"),
        ("sqlite+pysqlcipher:///runs.db", "set tracking.uri=sqlite:///runs.db"),
        ("postgresql+psycop2://h/d", "did you mean postgresql+psycopg2://?"),
        ("databricks-uc", "stores models, not runs"),
    ],
)
def test_what_mlflow_can_not_take_is_refused_with_the_mend(given: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        uri.check(TrackingConfig(uri=given))
    text = str(error.value)
    assert text.startswith(f"tracking.uri={given if given.strip() else repr('')}: ")
    assert "sqlite:///<file>, http(s)://<server>" in text
    assert fix in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "given",
    [
        *(
            "sqlite:///runs.db",
            "sqlite+pysqlite:////a%3Fb/runs.db",
            "sqlite:////data/runs.db?timeout=3",
            "http://host:5000",
            "https://ann:secret@host/mlflow",
        ),
        *("http://[::1]:5000", "databricks", "databricks://profile"),
    ],
)
def test_what_mlflow_takes_passes(given: str) -> None:
    uri.check(TrackingConfig(uri=given))


def test_the_variable_is_named_where_it_gives_the_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "ftp://ann:secret@host")
    with pytest.raises(ConfigError, match=r"^MLFLOW_TRACKING_URI=ftp://ann:\*\*\*@host:") as error:
        uri.check(TrackingConfig())
    assert "secret" not in str(error.value)
    uri.check(TrackingConfig(uri="sqlite:///runs.db"))
    uri.check(TrackingConfig(name="none"))


def test_a_folder_of_files_passes_where_mlflow_is_told_to_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri.check(TrackingConfig(uri="./mlruns"))


def test_a_driver_that_is_not_installed_is_refused_with_its_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uri, "_is_installed", lambda module: module == "pymysql")
    with pytest.raises(ConfigError, match=r"driver psycopg is not installed; pip install 'psycopg\[binary\]'$"):
        uri.check(TrackingConfig(uri="postgresql+psycopg://ann:secret@host/runs"))
    with pytest.raises(ConfigError, match=r"driver mysqldb is not installed; write mysql\+pymysql://"):
        uri.check(TrackingConfig(uri="mysql://host/runs"))
    uri.check(TrackingConfig(uri="mysql+pymysql://host/runs"))
