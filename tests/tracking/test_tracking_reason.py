"""A store's errors in few words; the connections are real ones, which break at each place where they can."""

import socket
import struct
import threading

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from runner.tracking.library import reason

_HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"
_RESET = struct.pack("ii", 1, 0)


@pytest.mark.parametrize(
    ("answer", "resets", "words"),
    [
        (b"", False, "Connection aborted"),
        (b"HTT", False, "Connection aborted"),
        (_HALF, False, "Connection broken"),
        (b"", True, "Connection reset"),
        (_HALF, True, "Connection reset"),
    ],
)
def test_a_server_that_dies_while_it_answers_is_said_in_two_words(answer, resets, words, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(MlflowException) as error:
            MlflowClient(f"http://127.0.0.1:{listener.getsockname()[1]}").get_run("a" * 32)
        listener.shutdown(socket.SHUT_RDWR)
    assert reason(error.value) == words


def test_a_pages_long_error_is_its_innermost_cause():
    text = (
        "API request to https://store.example/api/2.0/mlflow/runs/log-batch failed with exception HTTPSConnectionPool("
        "host='store.example', port=443): Max retries exceeded with url: /api/2.0/mlflow/runs/log-batch (Caused by "
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))"
    )
    assert reason(MlflowException(text)) == (
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))"
    )
