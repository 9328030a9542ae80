"""Reads the runs of a tracking store page by page; imports no MLflow, whose client it is handed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runner.host.heap import without_collection

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PAGE = 1000  # runs that a store is asked for at once


def pages(
    client: MlflowClient, experiments: Sequence[str], wanted: str, order: Sequence[str] | None = None
) -> Iterator[Run]:
    """Yields every run of some experiments that one of MLflow's filters lets pass, page by page.

    Args:
      client: of the store.
      experiments: ids.
      wanted: a filter as MLflow reads it.
      order: as MLflow reads it; null: newest first.
    """
    token = None
    while experiments:
        with without_collection():
            page = client.search_runs(
                list(experiments),
                filter_string=wanted,
                max_results=_PAGE,
                order_by=None if order is None else list(order),
                page_token=token,
            )
        yield from page
        if not (token := page.token):
            return
