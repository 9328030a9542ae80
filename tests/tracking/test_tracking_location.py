import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runner.tracking import default_uri
from runner.tracking.location import absolute, fingerprint, free_port, shown, sqlite_path, ui_lines


def test_the_default_is_an_absolute_sqlite_file_in_outputs(tmp_path):
    assert default_uri(tmp_path) == f"sqlite:///{tmp_path}/outputs/mlflow.db"


def test_the_environment_comes_before_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_uri(tmp_path) == "http://tracking:5000"


def test_a_relative_sqlite_file_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///a/../runs.db?timeout=9") == f"sqlite:///{tmp_path}/runs.db?timeout=9"
    assert sqlite_path("sqlite:///runs.db") == tmp_path / "runs.db"


@pytest.mark.parametrize("uri", ["http://h:1", "postgresql://u:p@h/db", "databricks", "sqlite:///:memory:"])
def test_other_uris_stay_as_they_are(uri):
    assert absolute(uri) == uri


def test_a_password_is_never_shown():
    uri = "postgresql+psycopg2://ann:se:cret@host/db"
    assert shown(uri) == "postgresql+psycopg2://ann:***@host/db"
    assert "cret" not in fingerprint(uri) + "".join(ui_lines(uri, "1", "r"))


def test_a_server_needs_no_ui_command():
    assert ui_lines("http://h:5000/", "3", "abc") == [
        "run: http://h:5000/#/experiments/3/runs/abc?workflowType=machine_learning"
    ]


def test_the_ui_command_names_a_port_that_is_free():
    first = free_port(20000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert free_port(first) > first


def test_importing_the_package_imports_no_mlflow():
    code = "import sys, runner.tracking; print([m for m in sys.modules if m.split('.')[0] in ('mlflow', 'numpy')])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert result.stdout.strip() == "[]"
