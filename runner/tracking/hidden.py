"""Tags that a run's page does not list: bookkeeping, and the whole config.

MLflow's UI lists no tag whose name begins with `mlflow.`. Bookkeeping is stored under such names, so that the page
lists only tags that a person reads.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping

from runner.tracking.records import TAG_LIMIT, clean_key

_PREFIX = "mlflow."
PARAMS = "runner.params"
_BOOKKEEPING = frozenset(
    {
        "runner.host",
        "runner.pid",
        "runner.boot",
        "runner.machine",
        "runner.folder",
        PARAMS,
        "runner.metrics",
        "runner.checkpoints",
        # The params of the page say these where they matter.
        "runner.cluster",
        "runner.optimizer",
        "runner.task",
        "runner.tracking",
        "runner.trainer",
        "runner.varied",
        "runner.sweep.job",
        "runner.sweep.best_run_id",
    }
)
# A job's values of the keys that its sweep varies. Its name and params show them already.
_VARIED = "varied."


def tag_key(key: str) -> str:
    """Returns the name under which a tag is stored.

    >>> tag_key("runner.mesh"), tag_key("runner.pid")
    ('runner.mesh', 'mlflow.runner.pid')
    """
    if key in _BOOKKEEPING or key.startswith(_VARIED):
        key = _PREFIX + key
    return clean_key(key)


def tags_of(stored: Mapping[str, str]) -> dict[str, str]:
    """Returns a run's tags by the names that `tag_key` was called with."""
    tags = {}
    for key, value in stored.items():
        if key.startswith((f"{_PREFIX}runner.", f"{_PREFIX}{_VARIED}")):
            key = key.removeprefix(_PREFIX)
        tags[key] = value
    return tags


def packed(params: Mapping[str, str]) -> str | None:
    """Returns a whole config as the value of one tag; None if it is too long for one."""
    text = base64.b64encode(zlib.compress(json.dumps(params).encode(), 9)).decode()
    return text if len(text) <= TAG_LIMIT else None


def params_of(params: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Returns a run's whole config, flat, as text: from its tag, else the params that its page lists."""
    try:
        content = json.loads(zlib.decompress(base64.b64decode(tags.get(PARAMS, ""), validate=True)))
        return {str(key): str(value) for key, value in content.items()}
    except (ValueError, AttributeError, zlib.error, RecursionError):
        # There is no tag, or somebody changed it: the params of the page are better than none.
        return dict(params)
