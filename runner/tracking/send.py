"""Stores records in MLflow: as they come, and after an outage from the runs' files.

MLflow's databases leave out a point that they have, so points may be sent again after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException

from runner.cluster.process import BOOT, PID
from runner.errors import TrackingError
from runner.host.lock import HeldError
from runner.tracking import run_file
from runner.tracking.base import FOLDER
from runner.tracking.location import fingerprint
from runner.tracking.mlflow_setup import http_code, reason
from runner.tracking.records import POINTS_PER_CALL, Artifact, Point, Record, Tag, clean_tags
from runner.tracking.store import Store

# With these codes MLflow itself rejects a record. A proxy in front of it may answer with the same words (404 while the
# server starts), which then come with an HTTP status and do not count.
_REJECTIONS = frozenset({"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"})
# MLflow reports every error of a database with this code. Only these two kinds are the fault of the record's values.
_DATABASE_ERROR = "BAD_REQUEST"
_BAD_ROWS = ("IntegrityError", "DataError")


def write(client: MlflowClient, run_id: str, records: Sequence[Record]) -> None:
    """Stores at most `POINTS_PER_CALL` points, or one record of another kind; again is as good as once."""
    record = records[0]
    if isinstance(record, Point):
        metrics: list[Metric] = []
        for point in records:
            assert isinstance(point, Point)
            metrics.append(Metric(point.key, point.value, point.timestamp, point.step))
        client.log_batch(run_id, metrics=metrics, synchronous=True)
    elif isinstance(record, Tag):
        for key, text in clean_tags({record.key: record.value}).items():
            client.set_tag(run_id, key, text)
    elif isinstance(record, Artifact):
        if not Path(record.path).is_file():
            # A ValueError, because an OSError would mean that the store can't be written and is worth a retry.
            raise ValueError(f"{record.path} does not exist")
        client.log_artifact(run_id, record.path, record.folder or None)
    else:
        client.set_terminated(run_id, record.status, record.end_time)


def is_retryable(error: Exception) -> bool:
    """Returns whether storing the same record later may work: the network, server, disk or a lock may recover."""
    if isinstance(error, MlflowException):
        if error.error_code == _DATABASE_ERROR:
            message = str(error)
            return not any(kind in message for kind in _BAD_ROWS)
        return error.error_code not in _REJECTIONS or http_code(error) is not None
    # The errors of `requests` are OSErrors too.
    return isinstance(error, OSError)


def sync(store: Store, path: Path, warn: Callable[[str], None]) -> int | None:
    """Sends what a run's file has and the store may lack, with a line to `warn`; raises as `run_file.opened` does.

    Returns how many records were sent; None if the file is another store's, or its process still runs. A TrackingError
    says that the store can't be reached, or rejects records; then the file is not marked as sent.
    """
    head, _ = run_file.parsed(path)
    if head["store"] != fingerprint(store.uri):
        return None
    try:
        with run_file.opened(path) as (head, records):
            sent = _send(store, head, records, path)
    except HeldError:
        return None
    if sent:
        warn(f"sent {sent:,} records of run {head['run_id']} that its process may not have stored")
    return sent


def sync_run(store: Store, run: Run, warn: Callable[[str], None]) -> None:
    """Sends what the latest process of a run could not send, if its file is on this machine; a failure is a line."""
    folder = run.data.tags.get(FOLDER)
    if not folder:
        return
    path = run_file.path_of(Path(folder), run.info.run_id)
    if not run_file.is_unsent(path):
        return
    try:
        sync(store, path, warn)
    except (TrackingError, OSError, ValueError) as error:
        warn(f"could not send {path}: {reason(error)}")


def _send(store: Store, head: Mapping[str, str], records: Sequence[Record], path: Path) -> int:
    """Sends the records of a run's file that the run may lack; returns their number."""
    run_id = head["run_id"]
    sent = 0
    rejections: list[str] = []
    try:
        batches = _batches(store.client, head, records)
    except Exception as error:
        raise TrackingError(f"could not send {path}: {reason(error)}") from error
    for batch in batches:
        try:
            _check_artifact(batch[0], path.parent)
            write(store.client, run_id, batch)
            sent += len(batch)
        # MLflow, SQLAlchemy, requests and drivers share no base class.
        except Exception as error:
            if is_retryable(error):
                raise TrackingError(f"could not send {path}: {reason(error)}; try again later") from error
            rejections += [reason(error)] * len(batch)
    if rejections:
        raise TrackingError(f"{len(rejections):,} records of {path} were rejected: {rejections[0]}")
    return sent


def _batches(client: MlflowClient, head: Mapping[str, str], records: Sequence[Record]) -> list[Sequence[Record]]:
    """Returns the records that the run may lack, in batches for `write`."""
    run_id = head["run_id"]
    points = [record for record in records if isinstance(record, Point)]
    others = [record for record in records if not isinstance(record, Point)]
    tags = client.get_run(run_id).data.tags
    # If another process has continued the run, its tags and its status count, and it has trained some steps again.
    if any(tags.get(key) != head.get(key) for key in (PID, BOOT)):
        others = []
        known: set[tuple[str, int]] = set()
        for key in {point.key for point in points}:
            known.update((key, stored.step) for stored in client.get_metric_history(run_id, key))
        points = [point for point in points if (point.key, point.step) not in known]
    batches: list[Sequence[Record]] = []
    for start in range(0, len(points), POINTS_PER_CALL):
        batches.append(points[start : start + POINTS_PER_CALL])
    return batches + [[record] for record in others]


def _check_artifact(record: Record, folder: Path) -> None:
    """Rejects a file from outside the run's folder: a copied folder must not make us upload a private file."""
    if isinstance(record, Artifact) and not Path(record.path).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{record.path} is not in {folder}")
