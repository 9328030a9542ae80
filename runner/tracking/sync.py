"""Sends what runs have in their files and their store lacks: points once, however often a file is sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlflow.entities import Run

from runner.errors import TrackingError
from runner.host.lock import HeldError
from runner.tracking import run_file
from runner.tracking.hidden import tags_of
from runner.tracking.location import fingerprint
from runner.tracking.process import BOOT, PID
from runner.tracking.reason import reason
from runner.tracking.records import Artifact, Point, Record
from runner.tracking.run_file import Unsent
from runner.tracking.send import MlflowWriter, batches, is_retryable
from runner.tracking.store import Store

# The tag with the folder of a run's latest process.
FOLDER = "runner.folder"


class _OtherStoreError(Exception):
    """Keeps a file from being marked."""


def send(store: Store, path: Path, warn: Callable[[str], None]) -> int | None:
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


def send_of_run(store: Store, run: Run, warn: Callable[[str], None]) -> None:
    """Sends what the latest process of a run could not send, if its file is on this machine; a failure is a line."""
    folder = tags_of(run.data.tags).get(FOLDER)
    if not folder:
        return
    path = run_file.path_of(Path(folder), run.info.run_id)
    if not run_file.is_unsent(path):
        return
    try:
        send(store, path, warn)
    except (TrackingError, OSError, ValueError) as error:
        warn(f"could not send {path}: {reason(error)}")


def _send(store: Store, unsent: Unsent, path: Path) -> int:
    writer = MlflowWriter(store.client, unsent.head["run_id"])
    sent = 0
    rejected = 0
    why = ""
    try:
        records = _missing(store, writer, unsent)
    except Exception as error:
        raise TrackingError(f"could not send {path}: {reason(error)}") from error
    for batch in batches(records):
        try:
            _check_artifact(batch[0], path.parent)
            writer.write(batch, is_retry=not isinstance(batch[0], Point))
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


def _missing(store: Store, writer: MlflowWriter, unsent: Unsent) -> list[Record]:
    """Returns the records that the run lacks; other records than points may be stored again."""
    tags = tags_of(store.client.get_run(unsent.head["run_id"]).data.tags)
    points = [record for record in unsent.records if isinstance(record, Point)]
    if all(tags.get(key) == unsent.head.get(key) for key in (PID, BOOT)):
        others = [record for record in unsent.records if not isinstance(record, Point)]
        return [*writer.missing(points), *others]
    # Another process has continued the run: its tags and its status count, and it has trained some steps again.
    return list(writer.missing(points, by_step=True))


def _check_artifact(record: Record, folder: Path) -> None:
    """Rejects a file from outside the run's folder: a copied folder must not make us upload a private file."""
    if isinstance(record, Artifact) and not Path(record.path).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{record.path} is not in {folder}")
