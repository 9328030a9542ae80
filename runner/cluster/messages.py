"""Messages between the processes of a run: lines of JSON, their limits, and the proof of the secret before them."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from runner.cluster.timeouts import SILENCE_S
from runner.errors import in_one_line

# Bytes that a connection may send before it has proved the secret.
GREETING = 4096
# Seconds of one attempt: a host that drops packets would otherwise use up the time for all of them.
_ATTEMPT_S = 2.0
# Characters of a peer's text in a printed message.
_MOST_SHOWN = 4000
# Bytes of a random string that makes a proof useless for any other connection.
NONCE = 32
# The two sides of a proof. They are part of what is signed, so that a side can't answer with the other's own proof.
PEER = "peer"
FIRST = "process 0"


class DeniedError(RuntimeError):
    """The two sides of a connection do not know the same secret."""


def encoded(message: Mapping[str, Any]) -> bytes:
    """Returns a message as a line."""
    return json.dumps(message).encode() + b"\n"


def printable(text: object) -> str:
    """Returns a peer's text as one line without control characters, which could move a terminal's cursor."""
    return "".join(sign if sign.isprintable() else " " for sign in in_one_line(str(text)[:_MOST_SHOWN]))


def proof(token: str, side: str, challenge: str, answer: str) -> str:
    """Returns the HMAC-SHA256 of a side, `PEER` or `FIRST`, that only one which knows the secret token can compute.

    `challenge` is process 0's nonce, `answer` the peer's.
    """
    return hmac.new(token.encode(), f"{side} {challenge} {answer}".encode(), "sha256").hexdigest()


def is_proof(said: object, token: str, side: str, challenge: str, answer: str) -> bool:
    """Returns whether a side has proved that it knows the secret."""
    expected = proof(token, side, challenge, answer).encode()
    # In constant time, so that the time of an answer does not reveal how much of a forged proof is right. JSON may
    # have a lone surrogate in a string, which `encode` would reject with an error.
    return isinstance(said, str) and hmac.compare_digest(said.encode(errors="replace"), expected)


def connect(host: str, port: int, token: str) -> socket.socket:
    """Connects to process 0, and proves the secret; raises as `authenticate` does."""
    connection = socket.create_connection((host, port), timeout=_ATTEMPT_S)
    try:
        # Linux may connect a local port that nobody listens on to itself.
        if connection.getsockname() == connection.getpeername():
            raise ConnectionError("nobody listens there")
        connection.settimeout(SILENCE_S)
        authenticate(connection, token)
    except (OSError, DeniedError):
        connection.close()
        raise
    # Messages are small and waited for.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def authenticate(connection: socket.socket, token: str) -> None:
    """Proves the secret to process 0, then verifies process 0's proof; nothing else is sent before that.

    A DeniedError says that the other side has another secret or is not process 0, an OSError that it can't be reached.
    """
    challenge = _greeting(connection).get("challenge")
    if not isinstance(challenge, str):
        raise DeniedError
    answer = secrets.token_hex(NONCE)
    own = {"answer": answer, "proof": proof(token, PEER, challenge, answer)}
    connection.sendall(encoded(own))
    if not is_proof(_greeting(connection).get("proof"), token, FIRST, challenge, answer):
        raise DeniedError


def _greeting(connection: socket.socket) -> Mapping[str, Any]:
    """Reads a line of at most `GREETING` bytes, and no byte after it."""
    with connection.makefile("rb", buffering=0) as stream:
        line = stream.readline(GREETING)
    if not line:
        raise ConnectionError("process 0 closed the connection")
    return greeting(line)


def greeting(line: bytes) -> Mapping[str, Any]:
    """Returns the JSON object in a line that was sent before the secret is proved, or raises DeniedError."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DeniedError from error
    if not isinstance(said, dict):
        raise DeniedError
    return said
