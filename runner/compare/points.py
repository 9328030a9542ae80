"""Every point of some runs as CSV, for a notebook or another tracker."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from mlflow import MlflowClient

from runner.compare.records import RunRecord, recorded

COLUMNS = ("run_id", "run", "metric", "step", "time", "value")


def write(client: MlflowClient, records: Sequence[RunRecord], path: Path) -> int:
    """Writes the points of runs, sorted by run, metric and step.

    Times are ISO 8601 in UTC.

    Args:
      client: client of the store.
      records: the runs.
      path: the CSV file, which is overwritten.

    Returns:
      The number of points.
    """
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        # The default of the csv module is CRLF, whose CR `cut`, `diff` and `awk` take for part of the last value.
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for record in records:
            for metric in sorted(record.metrics):
                points = client.get_metric_history(record.run_id, metric)
                points.sort(key=lambda point: (point.step, point.timestamp))
                for point in points:
                    time = datetime.fromtimestamp(point.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
                    # `repr` keeps all digits: what reads the file gets the same float.
                    value = repr(recorded(point.value))
                    writer.writerow((record.run_id, record.name, metric, point.step, time, value))
                count += len(points)
    return count
