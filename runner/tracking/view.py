"""MLflow's page of charts: the loss and the task's metrics first, those of training and evaluations in one chart."""

from __future__ import annotations

import json
from collections.abc import Iterable

from runner.task import metrics

# The name of the view in the addresses of pages.
KEY = "runner"
# MLflow's page reads a view that was shared from this tag of the experiment.
_TAG = f"mlflow.sharedViewState.{KEY}"
_SECTION = "training and evaluation"
# MLflow rejects a tag of an experiment that is longer than 5,000 characters, which are some 20 charts.
_MOST_CHARTS = 12


def tags(names: Iterable[str]) -> dict[str, str]:
    """Returns the tags of an experiment with the view, given the metrics of an evaluation, `loss` first."""
    charts = []
    for name in list(names)[:_MOST_CHARTS]:
        keys = [f"{metrics.EPOCH}{name}", f"{metrics.EVAL}{name}"]
        chart = {"uuid": name, "type": "LINE", "metricSectionId": _SECTION, "metricKey": keys[1], "deleted": False}
        charts.append({**chart, "selectedMetricKeys": keys, "runsCountToCompare": 10})
    section = {"uuid": _SECTION, "name": _SECTION, "display": True, "isReordered": True}
    view = {
        "compareRunCharts": charts,
        "compareRunSections": [section],
        "isAccordionReordered": True,
        # By default, MLflow smooths the lines of a shared view.
        "globalLineChartConfig": {"lineSmoothness": 0, "xAxisKey": "step"},
    }
    return {_TAG: json.dumps(view)}
