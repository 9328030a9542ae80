"""Every point of some runs as CSV, one a line, for a notebook, a spreadsheet or another tracker."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from mlflow import MlflowClient

from runner.compare.records import RunRecord, recorded

COLUMNS = ("run_id", "run", "metric", "step", "time", "value")


def write(client: MlflowClient, records: Sequence[RunRecord], path: Path) -> int:
    """Writes the points of runs, by run, metric and step; times are ISO 8601, of UTC.

    Args:
      client: of their store.
      records: the runs.
      path: of the CSV file, which is written over.

    Returns:
      How many points there are.
    """
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for record in records:
            for metric in sorted(record.metrics):
                points = client.get_metric_history(record.run_id, metric)
                for point in sorted(points, key=lambda one: (one.step, one.timestamp)):
                    time = datetime.fromtimestamp(point.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
                    rows.writerow((record.run_id, record.name, metric, point.step, time, repr(recorded(point.value))))
                count += len(points)
    return count
