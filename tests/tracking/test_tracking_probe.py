"""A store that can't be opened is one line: the URI, what is wrong, the fix; no SQL, no HTML."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from runner.cluster.launch import free_port
from runner.errors import TrackingError
from runner.tracking import store
from runner.tracking.location import sqlite_path
from runner.tracking.mlflow_setup import reason
from runner.tracking.store import open_store


def said_of(uri: str) -> str:
    with pytest.raises(TrackingError) as error:
        open_store(uri, "tests")
    text = str(error.value)
    assert text.startswith("tracking.uri=")
    assert text.endswith("or use tracking.uri=<another store> or tracking=none")
    assert not any(word in text for word in ("\n", "SQL:", "SELECT", "sqlalche.me", "<html", "Traceback"))
    assert len(text) < 600
    return text


def test_a_locked_file_is_said_to_be_held(
    uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "_LOCK_TIMEOUT_S", 0.2)
    path = sqlite_path(uri)
    assert path is not None
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        text = said_of(uri)
    assert "database is locked; fix the cause" in text
    assert capfd.readouterr().err == ""


def test_other_files_are_not_taken_for_stores(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("no database, " * 100)
    assert "file is not a database" in said_of(f"sqlite:///{tmp_path}/notes.db")
    (tmp_path / "folder").mkdir()
    assert "unable to open database file" in said_of(f"sqlite:///{tmp_path}/folder")
    assert "Not a directory" in said_of(f"sqlite:///{tmp_path}/notes.db/a/b.db")


def test_another_mlflows_tables_are_not_touched(uri: str, tmp_path: Path) -> None:
    path = sqlite_path(uri)
    assert path is not None
    shutil.copyfile(path, tmp_path / "other.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("UPDATE alembic_version SET version_num = ?", ("c48cb773bb87",))
    assert "`mlflow db upgrade sqlite:///" in said_of(f"sqlite:///{tmp_path}/other.db")


class Answer(BaseHTTPRequestHandler):
    """Answers every request alike."""

    code, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.code)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815 - the library's own name

    def log_message(self, *_: object) -> None:
        """Keeps quiet."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


PAGE = b"<!doctype html><html>" + b"<p>nothing here</p>" * 200 + b"</html>"


@pytest.mark.parametrize(
    ("code", "body", "fix"),
    [
        (401, PAGE, "HTTP status 401; set MLFLOW_TRACKING_USERNAME"),
        (403, b'{"error_code": "PERMISSION_DENIED", "message": "no"}', "MLFLOW_TRACKING_TOKEN"),
        (503, PAGE, "HTTP status 503; start it (`mlflow server`)"),
        (200, PAGE, "the response is not MLflow's; start it"),
        (200, b"{}", "the response is not MLflow's; use the address"),
    ],
)
def test_a_server_that_is_none_of_mlflows_says_its_status(
    address: str, monkeypatch: pytest.MonkeyPatch, code: int, body: bytes, fix: str
) -> None:
    monkeypatch.setattr(Answer, "code", code)
    monkeypatch.setattr(Answer, "body", body)
    text = said_of(f"http://ann:secret@{address}")
    assert fix in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:{}", "can't be used: Connection refused; start it (`mlflow"),
        ("postgresql://ann:secret@127.0.0.1:{}/runs", ""),
    ],
)
def test_a_store_that_is_down_at_the_start_is_said_soon(uri: str, said: str) -> None:
    begin = time.monotonic()
    text = said_of(uri.format(free_port()))
    assert time.monotonic() - begin < 10
    assert said in text
    assert "secret" not in text


def test_a_drivers_words_do_not_tell_the_password() -> None:
    uri = "postgresql+psycopg://ann:se-cret@host/runs"
    error = ValueError(f"can't connect to {uri} with se-cret: FATAL")
    assert "se-cret" not in str(store.unusable_by(uri, error))


def test_a_pages_long_error_is_its_innermost_cause() -> None:
    text = (
        "API request to https://store.example/api/2.0/mlflow/runs/log-batch failed with exception HTTPSConnectionPool("
        "host='store.example', port=443): Max retries exceeded with url: /api/2.0/mlflow/runs/log-batch (Caused by "
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))"
    )
    assert reason(MlflowException(text)) == (
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))"
    )
