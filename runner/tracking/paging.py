"""Paged search of runs in a tracking store.

Imports no MLflow: the caller passes the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# Runs per request: MLflow's own default.
_PAGE_SIZE = 1000


def experiment_ids(client: MlflowClient) -> dict[str, str]:
    """Returns the id of every active experiment, by name."""
    return {experiment.name: experiment.experiment_id for experiment in client.search_experiments()}


def pages(
    client: MlflowClient, experiments: Sequence[str], filter_string: str, order: Sequence[str] | None = None
) -> Iterator[Run]:
    """Yields every run of some experiments that matches a filter, page by page.

    Args:
      client: client of the store.
      experiments: ids of the experiments.
      filter_string: in MLflow's syntax; empty: every run.
      order: in MLflow's syntax; null: newest first.
    """
    order_by = None
    if order is not None:
        order_by = list(order)
    token = None
    while experiments:
        page = client.search_runs(
            list(experiments),
            filter_string=filter_string,
            max_results=_PAGE_SIZE,
            order_by=order_by,
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return
