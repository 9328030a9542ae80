"""The parts of logging a model that need no model: pinned requirements, and MLflow's global store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import mlflow

from runner.host.versions import installed


def pinned(packages: list[str]) -> list[str]:
    """Returns `name==version` for those of the packages that are installed."""
    return [f"{name}=={version}" for name, version in installed(packages).items()]


@contextlib.contextmanager
def pointed_at(uri: str) -> Iterator[None]:
    """Points MLflow's global state at a store while the context lasts.

    `set_tracking_uri` also writes into the environment, which is restored too: it would reach child processes.
    """
    previous_uri = mlflow.get_tracking_uri()
    previous_variable = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(previous_uri)
        if previous_variable is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)
        else:
            os.environ["MLFLOW_TRACKING_URI"] = previous_variable
