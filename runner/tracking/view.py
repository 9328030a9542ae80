"""The columns that MLflow's list of runs opens with, kept as a tag of the experiment that the printed link names.

MLflow 3.17 opens `/#/experiments/<id>/runs?viewStateShareKey=<key>` with the state that the tag
`mlflow.sharedViewState.<key>` holds as JSON: a column is `metrics.`name``, `params.`name`` or `tags.`name``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from runner.tracking.page import ENDED
from runner.tracking.store import Store

_TAG = "mlflow.sharedViewState."
# Name -> pixels that its values and its heading take.
_PARAMS = {
    "model": 80,
    "mesh": 130,
    "layout": 110,
    "dataset.batch_size": 145,
    "optimizer.learning_rate": 170,
    "trainer.epochs": 120,
    "engine": 120,
}
_NAME = "attributes.`Run Name`"
_CREATED = "runDateAndNestInfo"
# pixels
_RESULT = 120
_WIDE = 300


def save(store: Store, name: str, metrics: Sequence[str]) -> str | None:
    """Keeps the view of a kind of run in the experiment.

    Args:
      store: where the run is.
      name: of the view, as the task's.
      metrics: of the results, the one that runs are judged by first.

    Returns:
      The key that a link names; None where the store does not take the tag, for a link with a key that is not there
      opens with an error.
    """
    tag = _TAG + name
    state = json.dumps(_state(metrics))
    try:
        if store.client.get_experiment(store.experiment_id).tags.get(tag) != state:
            store.client.set_experiment_tag(store.experiment_id, tag, state)
    except Exception:  # a server that lets only some people tag an experiment; MLflow's own columns do as well
        return None
    return name


def saved(store: Store, name: str) -> str | None:
    """Returns the key of a view that the experiment has; None where it has none of the name."""
    try:
        return name if _TAG + name in store.client.get_experiment(store.experiment_id).tags else None
    except Exception:  # it is only a link
        return None


def _state(metrics: Sequence[str]) -> dict[str, object]:
    results = {f"metrics.`{name}`": _RESULT for name in metrics}
    settings = {f"params.`{name}`": width for name, width in _PARAMS.items()}
    columns = {**results, **settings, f"tags.`{ENDED}`": _WIDE}
    widths = {_NAME: _WIDE, _CREATED: 145, **columns}
    return {
        "selectedColumns": list(columns),
        "columnOrder": [_NAME, _CREATED, *columns],
        "columnWidths": widths,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
    }
