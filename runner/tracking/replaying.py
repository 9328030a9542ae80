"""Stores the records of unsent files in MLflow, each record once."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient

from runner.errors import TrackingError
from runner.host.lock import locked
from runner.host.paths import project_root
from runner.host.secrets import TRACKING, reveal
from runner.tracking import unsent_folders
from runner.tracking.location import default_uri, fingerprint
from runner.tracking.mlflow_import import quiet
from runner.tracking.reason import reason
from runner.tracking.records import Point, Record
from runner.tracking.send import MlflowWriter, batches, is_retryable
from runner.tracking.unsent import NotOursError, UnsentFile, append, lock_path, read, read_first_line

_REJECTED_SUFFIX = ".rejected.jsonl"
# A start of a run waits for these attempts: enough for a short hiccup. A store that is unavailable for longer is tried
# again at the next start.
_ATTEMPTS = 3
_RETRY_DELAY_S = 0.5
Value = TypeVar("Value")


def _ignore(line: str) -> None:
    """Shows nothing."""


def replay_all(root: Path, uri: str, warn: Callable[[str], None]) -> None:
    """Stores every file for a store in `unsent_folders.folders`.

    One that can't be stored stays, with a line.

    Args:
      root: the project's folder.
      uri: absolute tracking URI of the store.
      warn: shows one line to the user.
    """
    for line in unsent_folders.warnings(root):
        warn(line)
    ignored: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for path in unsent_folders.files(root):
        if path.name.endswith(_REJECTED_SUFFIX):
            # The store would reject them again.
            continue
        try:
            if json.loads(read_first_line(path))["store"] != fingerprint(uri):
                continue
            count = replay(path, uri, warn)
            if count:
                warn(f"stored {count} saved records of run {path.stem}")
        except FileNotFoundError:
            # Another process has stored it.
            continue
        except NotOursError as error:
            ignored[path.parent, str(error)].append(path.name)
        except (TrackingError, ValueError, KeyError, TypeError, OSError) as error:
            warn(f"keeping {_printable(str(path))}: {reason(error)}")
    for (folder, why), names in ignored.items():
        warn(_ignored_line(folder, why, names))


def _ignored_line(folder: Path, why: str, names: Sequence[str]) -> str:
    """Returns the line about files that are left alone, all for the same reason."""
    what = _printable(names[0])
    if len(names) > 1:
        what += f" and {len(names) - 1} more"
    return f"ignoring {what} in {folder}: {why}"


def _printable(name: str) -> str:
    """Returns a name that can't control the terminal."""
    if name.isprintable():
        return name
    return ascii(name)


def replay(path: Path, uri: str | None = None, warn: Callable[[str], None] = _ignore) -> int:
    """Stores the records of a file and removes it; what the run has already is not stored again.

    Records that the store rejects for good move to `<run id>.rejected.jsonl`.

    Args:
      path: a file of unsent records.
      uri: tracking URI; null: the one in the file, or the default one if that is the same store.
      warn: shows one line to the user.

    Returns:
      The number of records in the file.

    Raises:
      TrackingError: the store rejects them or can't be reached; the file stays.
      ValueError: it is not a file of unsent records, or not this user's.
    """
    quiet()
    with locked(lock_path(path)):
        if not path.exists():
            # Another process was faster.
            return 0
        unsent = read(path)
        client = MlflowClient(tracking_uri=uri or _uri_of(unsent.head))
        rejected, why = _store(client, unsent, path)
        summary = f"{len(rejected)} of {len(unsent.records)} records"
        if rejected and path.name.endswith(_REJECTED_SUFFIX):
            raise TrackingError(f"{path}: {summary} were rejected again, the file stays: {why}")
        if rejected:
            rejected_path = path.with_suffix(_REJECTED_SUFFIX)
            append(rejected_path, unsent.head, rejected)
            warn(f"{summary} were rejected and saved in {rejected_path}: {why}")
        # Only now: until here, a process that dies leaves all records in one of the files.
        path.unlink()
    return len(unsent.records)


def _uri_of(head: dict[str, str]) -> str:
    """Returns the URI of the store that a head names.

    The default one may have the secret that the head leaves out.
    """
    default = default_uri(project_root())
    if fingerprint(default) == head["store"]:
        return default
    return reveal(TRACKING, head["uri"])


def _store(client: MlflowClient, unsent: UnsentFile, path: Path) -> tuple[list[Record], str]:
    """Stores records.

    Returns:
      The records that the store rejects for good, and why it rejected the first one.

    Raises:
      TrackingError: the store can't be reached.
    """
    writer = MlflowWriter(client, unsent.head["run_id"])
    rejected: list[Record] = []
    why = ""
    try:
        records = _without_stored_points(writer, unsent.records)
        are_points_checked = True
    except Exception as error:
        if is_retryable(error):
            raise _unavailable(path, error) from error
        # For example, the run was deleted. Each batch then reports that itself.
        records = unsent.records
        are_points_checked = False
    for batch in batches(records):
        is_retry = not (are_points_checked and isinstance(batch[0], Point))
        try:
            _write_with_retries(writer, batch, is_retry=is_retry)
        except Exception as error:
            if is_retryable(error):
                raise _unavailable(path, error) from error
            rejected.extend(batch)
            why = why or reason(error)
    return rejected, why


def _unavailable(path: Path, error: Exception) -> TrackingError:
    return TrackingError(f"could not store {path}: {reason(error)}; try again later")


def _without_stored_points(writer: MlflowWriter, records: Sequence[Record]) -> list[Record]:
    """Returns the records without the points that the run has.

    The history of a metric is read once for the whole file. Reading it for each batch made the cost quadratic.
    """
    points = [record for record in records if isinstance(record, Point)]
    missing: Iterator[Point] = iter(())
    if points:
        missing = iter(_with_retries(lambda: writer.missing(points)))
    # The missing points are the same objects in the same order.
    next_missing = next(missing, None)
    kept: list[Record] = []
    for record in records:
        if not isinstance(record, Point):
            kept.append(record)
        elif record is next_missing:
            kept.append(record)
            next_missing = next(missing, None)
    return kept


def _write_with_retries(writer: MlflowWriter, batch: list[Record], *, is_retry: bool) -> None:
    """Stores a batch.

    A retry does not store again what the failed attempt has stored of it.
    """
    may_be_stored = is_retry

    def attempt() -> None:
        nonlocal may_be_stored
        is_retry = may_be_stored
        may_be_stored = True
        writer.write(batch, is_retry=is_retry)

    _with_retries(attempt)


def _with_retries(call: Callable[[], Value]) -> Value:
    """Returns what a call returns, which is repeated if that may help."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except Exception as error:
            if not is_retryable(error):
                raise
            time.sleep(_RETRY_DELAY_S)
    return call()
