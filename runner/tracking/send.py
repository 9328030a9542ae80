"""Stores records through an MLflow client, each once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric
from mlflow.exceptions import MlflowException

from runner.tracking import page
from runner.tracking.hidden import tag_key
from runner.tracking.reason import http_code
from runner.tracking.records import TAG_LIMIT, Artifact, Dataset, Point, Record, Tag, cut

POINTS_A_CALL = 1000  # MLflow's limit
# What MLflow itself says of a record. The same words by a proxy's status (404 while the server behind it starts) don't
# count, and a database's trouble is the record's fault only where its rows are.
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"})
_BY_DATABASE = "BAD_REQUEST"
_BAD_ROWS = ("IntegrityError", "DataError")


class Sender:
    """Stores groups of records in one run."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def __call__(self, group: list[Record], *, unsure: bool) -> None:
        """Stores a group: either points only, or one other record.

        Args:
          group: what to store.
          unsure: part of it may be stored already; what is found in the run is not stored again.
        """
        first = group[0]
        if isinstance(first, Point):
            self._points(cast("list[Point]", group), unsure=unsure)
        elif isinstance(first, Tag) and first.key == page.TAG:
            current = self._client.get_run(self._run_id).data.tags.get(page.TAG)
            self._client.set_tag(self._run_id, page.TAG, cut(page.merged(first.value, current), TAG_LIMIT))
        elif isinstance(first, Tag):
            self._client.set_tag(self._run_id, tag_key(first.key), cut(first.value, TAG_LIMIT))
        elif isinstance(first, Dataset):
            self._dataset(first, unsure=unsure)
        elif isinstance(first, Artifact):
            if not Path(first.path).is_file():
                raise ValueError(f"{first.path} is not there")  # an OSError would say that the store can't be written
            self._client.log_artifact(self._run_id, first.path, first.folder or None)
        else:
            self._client.set_terminated(self._run_id, first.status, first.end_time)

    def _points(self, points: list[Point], *, unsure: bool) -> None:
        if unsure:
            points = self.missing(points)
        if points:
            metrics = [Metric(point.key, point.value, point.timestamp, point.step) for point in points]
            self._client.log_batch(self._run_id, metrics=metrics, synchronous=True)

    def missing(self, points: Sequence[Point]) -> list[Point]:
        """Returns those of the points that the run does not have, in order; equal ones once.

        The whole history of each metric is read, so many points should come in one call.
        """
        stored = {
            (metric.key, _same(metric.value), metric.timestamp, metric.step)
            for key in dict.fromkeys(point.key for point in points)
            for metric in self._client.get_metric_history(self._run_id, key)
        }
        found: list[Point] = []
        for point in points:
            identity = (point.key, _same(point.value), point.timestamp, point.step)
            if identity not in stored:
                stored.add(identity)
                found.append(point)
        return found

    def _dataset(self, dataset: Dataset, *, unsure: bool) -> None:
        if unsure and (dataset.name, dataset.digest) in self._dataset_names():
            return
        source_type, source = _dataset_source(dataset.source)
        entity = MlflowDataset(dataset.name, dataset.digest, source_type, source)
        inputs = [DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)])]
        self._client.log_inputs(self._run_id, inputs)

    def _dataset_names(self) -> set[tuple[str, str]]:
        inputs = self._client.get_run(self._run_id).inputs.dataset_inputs
        return {(one.dataset.name, one.dataset.digest) for one in inputs}


def groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yields the records in order, in groups that a `Sender` takes."""
    group: list[Record] = []
    for record in records:
        joins = isinstance(record, Point) and group and isinstance(group[0], Point) and len(group) < POINTS_A_CALL
        if group and not joins:
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def may_pass(error: Exception) -> bool:
    """Returns whether storing the same record later may work: the network, the server, the disk or a lock may fix."""
    if isinstance(error, MlflowException):
        if error.error_code == _BY_DATABASE:
            return not any(word in str(error) for word in _BAD_ROWS)
        return error.error_code not in _REFUSALS or http_code(error) is not None
    return isinstance(error, OSError)  # as requests' own errors are


def _same(value: float) -> float | str:
    return "nan" if math.isnan(value) else value


def _dataset_source(source: str) -> tuple[str, str]:
    if source.startswith(("http://", "https://")):
        return "http", json.dumps({"url": source})
    if Path(source).is_absolute():
        return "local", json.dumps({"uri": source})
    return "code", json.dumps({"tags": {"source": source}})
