"""Records of a run: values that can wait in a queue and be written to a file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

# MLflow rejects a `log_batch` of more points.
POINTS_PER_CALL = 1000
# Longest key, param and tag that MLflow stores; the run's config.yaml has all of a param.
_KEY_LIMIT = 250
_PARAM_LIMIT = 6000
_TAG_LIMIT = 8000
# The tag that MLflow shows as a run's description.
DESCRIPTION = "mlflow.note.content"
# Prefix of the tags that MLflow's page does not list.
HIDDEN = "mlflow."
# Of those with the figures that have one value per run: as metrics they would be charts of one point.
_FIGURE = f"{HIDDEN}figure."


class Point(NamedTuple):
    """One metric's value at one step; `timestamp` in milliseconds since 1970."""

    key: str
    value: float
    timestamp: int
    step: int


class Tag(NamedTuple):
    """A tag of the run."""

    key: str
    value: str


class Artifact(NamedTuple):
    """A file to upload, by absolute path; `folder` is empty for the artifacts' root."""

    path: str
    folder: str


class Ending(NamedTuple):
    """The run's final status; `end_time` in milliseconds since 1970."""

    status: str
    end_time: int


Record = Point | Tag | Artifact | Ending
_KINDS: dict[str, type[Record]] = {kind.__name__.lower(): kind for kind in (Point, Tag, Artifact, Ending)}


def to_json(record: Record) -> str:
    """Returns the record as one line of JSON."""
    return json.dumps({"kind": type(record).__name__.lower(), **record._asdict()})


def from_json(line: str) -> Record:
    """Returns the record of a line that `to_json` made; raises ValueError for any other."""
    fields = json.loads(line)
    try:
        return _KINDS[fields.pop("kind")](**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record: {line.strip()[:80]}") from error


# A run logs the same names in every window.
@cache
def clean_key(key: str) -> str:
    """Returns a key that MLflow accepts, with `_` for each character that it rejects.

    >>> clean_key("layout.rules[0]=x")
    'layout.rules_0__x'
    """
    safe = re.sub(r"[^\w.\- :/]", "_", key, flags=re.ASCII)
    # MLflow reads a key as a path: empty parts, `.` and `..` would make it another one.
    parts = ["_" if part in (".", "..") else part for part in safe.split("/") if part]
    return "/".join(parts)[:_KEY_LIMIT] or "_"


def clean_params(params: Mapping[str, object]) -> dict[str, str]:
    """Returns params as MLflow stores them; of keys that became equal the last one counts."""
    return {clean_key(key): as_text(value)[:_PARAM_LIMIT] for key, value in params.items()}


def clean_tags(tags: Mapping[str, object]) -> dict[str, str]:
    """Returns tags as MLflow stores them."""
    return {clean_key(key): str(value)[:_TAG_LIMIT] for key, value in tags.items()}


def figure_tags(figures: Mapping[str, float]) -> dict[str, str]:
    """Returns the tags of figures that have one value per run.

    >>> figure_tags({"plan/bytes_per_device": 153760.0, "throughput/input_wait": 0.05})
    {'mlflow.figure.plan/bytes_per_device': '153760', 'mlflow.figure.throughput/input_wait': '0.05'}
    """
    return {f"{_FIGURE}{name}": f"{value:.15g}" for name, value in figures.items()}


def figures_of(tags: Mapping[str, str]) -> dict[str, float]:
    """Returns the figures among a run's tags, without those that a person has changed into words."""
    figures: dict[str, float] = {}
    for name, text in tags.items():
        if name.startswith(_FIGURE):
            with suppress(ValueError):
                figures[name.removeprefix(_FIGURE)] = float(text)
    return figures


def as_text(value: object) -> str:
    """Returns a config value as it would be typed on the command line.

    >>> as_text(None), as_text(True), as_text(1e-4), as_text(["a", None])
    ('null', 'true', '0.0001', '["a", null]')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    return json.dumps(value, ensure_ascii=False, default=str)
