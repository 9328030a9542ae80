"""Names of tags: MLflow's UI lists no tag whose name begins with `mlflow.`.

Bookkeeping is stored under such names, so that a run's page lists only tags that a person reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.tracking.records import clean_key

_PREFIX = "mlflow."
_BOOKKEEPING = frozenset(
    {
        "runner.host",
        "runner.pid",
        "runner.boot",
        "runner.machine",
        "runner.folder",
        "runner.metrics",
        "runner.checkpoints",
        # The params of the page say these where they matter.
        "runner.optimizer",
        "runner.task",
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
