"""Stores records in MLflow, each of them once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric
from mlflow.exceptions import MlflowException

from runner.tracking import page
from runner.tracking.hidden import tag_key
from runner.tracking.reason import http_code
from runner.tracking.records import TAG_LIMIT, Artifact, Dataset, Ending, Point, Record, Tag, cut

# MLflow rejects a `log_batch` of more points.
POINTS_PER_CALL = 1000
# With these codes MLflow itself rejects a record. A proxy in front of it may answer with the same words (404 while the
# server starts), which then come with an HTTP status and do not count.
_REJECTIONS = frozenset({"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"})
# MLflow reports every error of a database with this code. Only these two kinds are the fault of the record's values.
_DATABASE_ERROR = "BAD_REQUEST"
_BAD_ROWS = ("IntegrityError", "DataError")


class MlflowWriter:
    """Writes records to one run; see `runner.tracking.writer`."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def write(self, records: Sequence[Record], *, is_retry: bool) -> None:
        """Stores points only, or one record of another kind; on a retry, only what the run does not have."""
        points = [record for record in records if isinstance(record, Point)]
        if points:
            assert len(points) == len(records)
            if is_retry:
                points = self.missing(points)
            if points:
                metrics = [Metric(point.key, point.value, point.timestamp, point.step) for point in points]
                self._client.log_batch(self._run_id, metrics=metrics, synchronous=True)
            return
        (record,) = records
        if isinstance(record, Tag):
            self._write_tag(record)
        elif isinstance(record, Dataset):
            self._write_dataset(record, is_retry=is_retry)
        elif isinstance(record, Artifact):
            if not Path(record.path).is_file():
                # A ValueError, because an OSError would mean that the store can't be written and is worth a retry.
                raise ValueError(f"{record.path} does not exist")
            self._client.log_artifact(self._run_id, record.path, record.folder or None)
        else:
            assert isinstance(record, Ending)
            self._client.set_terminated(self._run_id, record.status, record.end_time)

    def missing(self, points: Sequence[Point], *, by_step: bool = False) -> list[Point]:
        """Returns the points that the run does not have, in order and without duplicates.

        With `by_step`, a point of another value at the same step counts too. The whole history of each metric is
        read, so pass many points in one call.
        """
        known = set()
        for key in dict.fromkeys(point.key for point in points):
            for metric in self._client.get_metric_history(self._run_id, key):
                stored = Point(metric.key, metric.value, metric.timestamp, metric.step)
                known.add(_identity(stored, by_step=by_step))
        missing: list[Point] = []
        for point in points:
            identity = _identity(point, by_step=by_step)
            if identity not in known:
                known.add(identity)
                missing.append(point)
        return missing

    def _write_tag(self, tag: Tag) -> None:
        text = tag.value
        if tag.key == page.TAG:
            # A person may have added to the description since it was last written.
            text = page.merged(text, self._client.get_run(self._run_id).data.tags.get(page.TAG))
        self._client.set_tag(self._run_id, tag_key(tag.key), cut(text, TAG_LIMIT))

    def _write_dataset(self, dataset: Dataset, *, is_retry: bool) -> None:
        if is_retry:
            inputs = self._client.get_run(self._run_id).inputs.dataset_inputs
            if (dataset.name, dataset.digest) in {(one.dataset.name, one.dataset.digest) for one in inputs}:
                return
        entity = MlflowDataset(dataset.name, dataset.digest, *_dataset_source(dataset.source))
        context = InputTag("mlflow.data.context", dataset.context)
        self._client.log_inputs(self._run_id, [DatasetInput(entity, [context])])


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yields the records in order, in batches that `MlflowWriter.write` accepts."""
    batch: list[Record] = []
    for record in records:
        is_batch_of_points = bool(batch) and isinstance(batch[0], Point)
        joins = isinstance(record, Point) and is_batch_of_points and len(batch) < POINTS_PER_CALL
        if batch and not joins:
            yield batch
            batch = []
        batch.append(record)
    if batch:
        yield batch


def is_retryable(error: Exception) -> bool:
    """Returns whether storing the same record later may work: the network, server, disk or a lock may recover."""
    if isinstance(error, MlflowException):
        if error.error_code == _DATABASE_ERROR:
            message = str(error)
            return not any(kind in message for kind in _BAD_ROWS)
        return error.error_code not in _REJECTIONS or http_code(error) is not None
    # The errors of `requests` are OSErrors too.
    return isinstance(error, OSError)


def _identity(point: Point, *, by_step: bool) -> tuple[object, ...]:
    if by_step:
        return (point.key, point.step)
    # NaN does not equal itself, so it is compared by name.
    return ("nan" if math.isnan(point.value) else point.value, point.key, point.step, point.timestamp)


def _dataset_source(source: str) -> tuple[str, str]:
    """Returns the type and the JSON by which MLflow shows where a dataset comes from."""
    if source.startswith(("http://", "https://")):
        return "http", json.dumps({"url": source})
    if Path(source).is_absolute():
        return "local", json.dumps({"uri": source})
    return "code", json.dumps({"tags": {"source": source}})
