"""What a run keeps that its page does not list: tags of our own bookkeeping, and the whole config.

MLflow's UI lists no tag whose name begins with `mlflow.`, so such tags leave those alone that a person reads.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping

from runner.tracking.records import TAG_LIMIT, clean_key

_PREFIX = "mlflow."
_BOOKKEEPING = frozenset(
    f"runner.{word}"
    for word in (
        "host",
        "pid",
        "boot",
        "machine",
        "code",
        "config",
        "params",
        "metrics",
        "git.changed",
        "checkpoints",
        *("against", "cluster", "optimizer", "task", "tracking", "trainer"),  # params say it, where it matters
        "varied",
        "sweep.job",
        "sweep.argv",
        "sweep.signature",
        "sweep.folder",
        "sweep.best_run_id",
    )
)
_VARIED = "varied."  # a job's values of what its sweep varies; its name and its params say them
PARAMS = "runner.params"
_OURS = (f"{_PREFIX}runner.", f"{_PREFIX}{_VARIED}")


def tag_key(key: str) -> str:
    """Returns the name under which a tag is stored.

    >>> tag_key("runner.mesh"), tag_key("runner.pid")
    ('runner.mesh', 'mlflow.runner.pid')
    """
    is_hidden = key in _BOOKKEEPING or key.startswith(_VARIED)
    return clean_key(_PREFIX + key if is_hidden else key)


def tags_of(stored: Mapping[str, str]) -> dict[str, str]:
    """Returns a run's tags by the names that they were given; earlier releases stored all of them so.

    >>> tags_of({"mlflow.runner.pid": "7", "runner.pid": "6", "runner.mesh": "single"})
    {'runner.pid': '7', 'runner.mesh': 'single'}
    """
    ours = {key.removeprefix(_PREFIX): value for key, value in stored.items() if key.startswith(_OURS)}
    return {key: value for key, value in stored.items() if not key.startswith(_OURS)} | ours


def packed(params: Mapping[str, str]) -> str | None:
    """Returns a whole config as the value of a tag; None where it is too long for one."""
    text = base64.b64encode(zlib.compress(json.dumps(params).encode(), 9)).decode()
    return text if len(text) <= TAG_LIMIT else None


def params_of(params: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Returns a run's whole config, flat, as text.

    Args:
      params: those that its page lists; of an earlier release, or where they fit no tag, all of them.
      tags: as `tags_of` returns them.
    """
    text = tags.get(PARAMS)
    if text is None:
        return dict(params)
    try:
        found = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except (ValueError, zlib.error, RecursionError):
        return dict(params)
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else dict(params)
