"""Finds a tracking UI on this machine that serves a run already. Imports no MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.request import ProxyHandler, Request, build_opener

import psutil

_DEFAULT_PORT = 5000  # of `mlflow ui`
_PATIENCE_S = 1.0  # for one answer over loopback
_MOST = 5  # servers that are asked


def find(run_id: str) -> str | None:
    """Returns the address of a server on this machine that has a run; None where none answers at once.

    Only ports that a process with `mlflow` in its command line names are asked, and only over loopback. That the
    server knows the run's id says more than any path of a store that it was started with.

    Args:
      run_id: of a run that is stored.
    """
    ports = dict.fromkeys(port for line in _command_lines() if (port := port_of(line)) is not None)
    for port in list(ports)[:_MOST]:
        address = f"http://127.0.0.1:{port}"
        if _has(address, run_id):
            return address
    return None


def port_of(command: Sequence[str]) -> int | None:
    """Returns the port that a command line of MLflow's UI names or means; None for any other.

    >>> port_of(["python", "-m", "mlflow", "ui", "--port", "5001"]), port_of(["vim", "mlflow.py"])
    (5001, None)
    """
    words = [re.split(r"[/\\]", word)[-1] for word in command[:6]]
    if not any(word == "mlflow" or word.startswith("mlflow.server") for word in [*words, *command]):
        return None
    for word, after in zip(command, [*command[1:], ""], strict=True):
        name, _, value = word.partition("=")
        given = (value or after) if name in ("--port", "-p") else ""
        if given.isdigit():
            return int(given)
    return _DEFAULT_PORT if {"ui", "server"} & {*command} else None


def _command_lines() -> Iterator[list[str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone, or another user's
            yield process.cmdline()


def _has(address: str, run_id: str) -> bool:
    """Returns whether the server there answers with the run; never through a proxy."""
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(Request(f"{address}/api/2.0/mlflow/runs/get?run_id={run_id}"), timeout=_PATIENCE_S) as answer:
            return bool(json.load(answer)["run"]["info"]["run_id"] == run_id)
    except (OSError, ValueError, KeyError, TypeError):
        return False
