"""Columns of MLflow's list of runs, stored as a tag of the experiment.

The printed link names the tag.

MLflow 3.17 opens `/#/experiments/<id>/runs?viewStateShareKey=<key>` with the state that the tag
`mlflow.sharedViewState.<key>` contains as JSON: a column is `metrics.`name``, `params.`name`` or `tags.`name``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from runner.tracking.page import ENDED
from runner.tracking.store import Store

_TAG = "mlflow.sharedViewState."
# Width of each column in pixels: what its heading and its usual values need in MLflow's font.
_PARAM_WIDTHS = {
    "model": 80,
    "mesh": 130,
    "layout": 110,
    "dataset.batch_size": 145,
    "optimizer.learning_rate": 170,
    "trainer.epochs": 120,
    "engine": 120,
}
_METRIC_WIDTH = 120
_NAME_WIDTH = 300
_CREATED_WIDTH = 145
_NAME = "attributes.`Run Name`"
_CREATED = "runDateAndNestInfo"


def save(store: Store, name: str, metrics: Sequence[str]) -> str | None:
    """Stores the view of a kind of run in the experiment.

    Args:
      store: store and experiment of the run.
      name: name of the view, such as the task's.
      metrics: result metrics; the one that runs are judged by comes first.

    Returns:
      The key for the link; None if the store does not accept the tag, because MLflow shows an error for a link with
      an unknown key.
    """
    tag = _TAG + name
    state = json.dumps(_state(metrics))
    try:
        if store.client.get_experiment(store.experiment_id).tags.get(tag) != state:
            store.client.set_experiment_tag(store.experiment_id, tag, state)
    # A server may let only some users tag an experiment. MLflow's own columns are good enough then.
    except Exception:
        return None
    return name


def saved(store: Store, name: str) -> str | None:
    """Returns the key of a stored view; None if the experiment has none of this name."""
    try:
        tags = store.client.get_experiment(store.experiment_id).tags
    # The view is only part of a link, so no error of the store may end a run.
    except Exception:
        return None
    if _TAG + name not in tags:
        return None
    return name


def _state(metrics: Sequence[str]) -> dict[str, object]:
    columns = {f"metrics.`{name}`": _METRIC_WIDTH for name in metrics}
    columns |= {f"params.`{name}`": width for name, width in _PARAM_WIDTHS.items()}
    columns[f"tags.`{ENDED}`"] = _NAME_WIDTH
    return {
        "selectedColumns": list(columns),
        "columnOrder": [_NAME, _CREATED, *columns],
        "columnWidths": {_NAME: _NAME_WIDTH, _CREATED: _CREATED_WIDTH, **columns},
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
    }
