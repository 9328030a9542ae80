"""Stores records in MLflow, each of them once: as they come, and after an outage from the runs' files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Run
from mlflow.exceptions import MlflowException

from runner.errors import TrackingError
from runner.host.lock import HeldError
from runner.tracking import page, run_file
from runner.tracking.location import fingerprint
from runner.tracking.mlflow_setup import http_code, reason
from runner.tracking.process import BOOT, PID
from runner.tracking.records import TAG_LIMIT, Artifact, Dataset, Ending, Point, Record, Tag, cut
from runner.tracking.run_file import Unsent
from runner.tracking.store import Store
from runner.tracking.tags import tag_key, tags_of

# The tag with the folder of a run's latest process.
FOLDER = "runner.folder"
# MLflow rejects a `log_batch` of more points.
POINTS_PER_CALL = 1000
# With these codes MLflow itself rejects a record. A proxy in front of it may answer with the same words (404 while the
# server starts), which then come with an HTTP status and do not count.
_REJECTIONS = frozenset({"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"})
# MLflow reports every error of a database with this code. Only these two kinds are the fault of the record's values.
_DATABASE_ERROR = "BAD_REQUEST"
_BAD_ROWS = ("IntegrityError", "DataError")


class MlflowWriter:
    """Writes records to one run."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def write(self, records: Sequence[Record], *, is_retry: bool = False) -> None:
        """Stores at most `POINTS_PER_CALL` points, or one record of another kind.

        On a retry, points that the run has are left out. Other records are there once, however often they are stored.
        """
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
            entity = MlflowDataset(record.name, record.digest, *_dataset_source(record.source))
            context = InputTag("mlflow.data.context", record.context)
            self._client.log_inputs(self._run_id, [DatasetInput(entity, [context])])
        elif isinstance(record, Artifact):
            if not Path(record.path).is_file():
                # A ValueError, because an OSError would mean that the store can't be written and is worth a retry.
                raise ValueError(f"{record.path} does not exist")
            self._client.log_artifact(self._run_id, record.path, record.folder or None)
        else:
            assert isinstance(record, Ending)
            self._client.set_terminated(self._run_id, record.status, record.end_time)

    def _write_tag(self, tag: Tag) -> None:
        text = tag.value
        if tag.key == page.TAG:
            # A person may have added to the description since it was last written.
            text = page.merged(text, self._client.get_run(self._run_id).data.tags.get(page.TAG))
        self._client.set_tag(self._run_id, tag_key(tag.key), cut(text, TAG_LIMIT))

    def missing(self, points: Sequence[Point], *, by_step: bool = False) -> list[Point]:
        """Returns the points that the run does not have, in order and without duplicates.

        With `by_step`, a point of another value at the same step counts too. The whole history of each metric is
        read, so pass many points in one call.
        """
        known = set()
        for key in {point.key for point in points}:
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


class _OtherStoreError(Exception):
    """Keeps a file from being marked."""


def sync(store: Store, path: Path, warn: Callable[[str], None]) -> int | None:
    """Sends what a run's file has and the store lacks, with a line to `warn`.

    Returns:
      How many records were sent; None if the file is another store's, or its process still runs.

    Raises:
      TrackingError: the store can't be reached, or rejects records; the file is not marked as sent.
      OSError: the file can't be read or marked, or another user can write to it.
      ValueError: it is not a file of a run's records.
    """
    try:
        with run_file.opened(path) as unsent:
            if unsent.head["store"] != fingerprint(store.uri):
                raise _OtherStoreError
            sent = _send(store, unsent, path)
    except (HeldError, _OtherStoreError):
        return None
    if sent:
        warn(f"stored {sent:,} records of run {unsent.head['run_id']} that its process could not send")
    return sent


def sync_run(store: Store, run: Run, warn: Callable[[str], None]) -> None:
    """Sends what the latest process of a run could not send, if its file is on this machine; a failure is a line."""
    folder = tags_of(run.data.tags).get(FOLDER)
    if not folder:
        return
    path = run_file.path_of(Path(folder), run.info.run_id)
    if not run_file.is_unsent(path):
        return
    try:
        sync(store, path, warn)
    except (TrackingError, OSError, ValueError) as error:
        warn(f"could not send {path}: {reason(error)}")


def _send(store: Store, unsent: Unsent, path: Path) -> int:
    writer = MlflowWriter(store.client, unsent.head["run_id"])
    sent = 0
    rejected = 0
    why = ""
    try:
        batches = _missing(store, writer, unsent)
    except Exception as error:
        raise TrackingError(f"could not send {path}: {reason(error)}") from error
    for batch in batches:
        try:
            _check_artifact(batch[0], path.parent)
            writer.write(batch)
            sent += len(batch)
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            if is_retryable(error):
                raise TrackingError(f"could not send {path}: {reason(error)}; try again later") from error
            rejected += len(batch)
            why = why or reason(error)
    if rejected:
        raise TrackingError(f"{rejected:,} records of {path} were rejected: {why}")
    return sent


def _missing(store: Store, writer: MlflowWriter, unsent: Unsent) -> list[Sequence[Record]]:
    """Returns the records that the run lacks, in batches; other records than points may be stored again."""
    tags = tags_of(store.client.get_run(unsent.head["run_id"]).data.tags)
    # If another process has continued the run, its tags and its status count, and it has trained some steps again.
    is_continued = any(tags.get(key) != unsent.head.get(key) for key in (PID, BOOT))
    points: list[Point] = []
    others: list[Record] = []
    for record in unsent.records:
        if isinstance(record, Point):
            points.append(record)
        elif not is_continued:
            others.append(record)
    missing = writer.missing(points, by_step=is_continued)
    batches: list[Sequence[Record]] = [
        missing[start : start + POINTS_PER_CALL] for start in range(0, len(missing), POINTS_PER_CALL)
    ]
    return batches + [[record] for record in others]


def _check_artifact(record: Record, folder: Path) -> None:
    """Rejects a file from outside the run's folder: a copied folder must not make us upload a private file."""
    if isinstance(record, Artifact) and not Path(record.path).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{record.path} is not in {folder}")
