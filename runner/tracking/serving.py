"""Search for an MLflow UI on this machine that shows a run. Imports no MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.request import ProxyHandler, Request, build_opener

import psutil

# The default port of `mlflow ui`.
_DEFAULT_PORT = 5000
# For one answer over loopback, which takes milliseconds unless the server is stuck.
_TIMEOUT_S = 1.0
# Servers that are asked, so that the end of a run is never delayed by more than five seconds.
_MAX_SERVERS = 5
# The program is among the first words of a command line, as in `python -X dev -m mlflow ui`.
_PROGRAM_WORDS = 6


def find(run_id: str) -> str | None:
    """Returns the address of a server on this machine that has a run.

    Returns None if none answers in time.

    Only ports that appear in the command lines of MLflow processes are asked, and only over loopback. That a server
    knows the run's id is better evidence than the path of the store that it was started with.

    Args:
      run_id: id of a stored run.
    """
    ports: list[int] = []
    for command in _command_lines():
        port = port_of(command)
        if port is not None and port not in ports:
            ports.append(port)
    for port in ports[:_MAX_SERVERS]:
        address = f"http://127.0.0.1:{port}"
        if _has_run(address, run_id):
            return address
    return None


def port_of(command: Sequence[str]) -> int | None:
    """Returns the port that a command line of MLflow's UI names or implies.

    Returns None for any other command.

    >>> port_of(["python", "-m", "mlflow", "ui", "--port", "5001"]), port_of(["vim", "mlflow.py"])
    (5001, None)
    """
    programs = [re.split(r"[/\\]", word)[-1] for word in command[:_PROGRAM_WORDS]]
    if not any(word == "mlflow" or word.startswith("mlflow.server") for word in [*programs, *command]):
        return None
    for word, next_word in zip(command, [*command[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name in ("--port", "-p"):
            port = value or next_word
            if port.isdigit():
                return int(port)
    if "ui" in command or "server" in command:
        return _DEFAULT_PORT
    return None


def _command_lines() -> Iterator[list[str]]:
    for process in psutil.process_iter():
        # The process has ended, or is another user's.
        with suppress(psutil.Error, OSError):
            yield process.cmdline()


def _has_run(address: str, run_id: str) -> bool:
    """Returns whether the server at a loopback address has the run.

    Never asks through a proxy.
    """
    opener = build_opener(ProxyHandler({}))
    request = Request(f"{address}/api/2.0/mlflow/runs/get?run_id={run_id}")
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return bool(json.load(response)["run"]["info"]["run_id"] == run_id)
    except (OSError, ValueError, KeyError, TypeError):
        return False
