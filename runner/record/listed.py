"""Which params a run's page lists: what tells one run from another at a glance; config.yaml has all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.config.convert import flatten
from runner.layout import mesh

_GROUPS = ("model", "mesh", "layout", "engine", "dataset", "task", "optimizer")
_KEYS = (
    "dataset.batch_size",
    "engine.precision",
    "optimizer.learning_rate",
    "optimizer.schedule.name",
    "trainer.accumulate_steps",
    "trainer.epochs",
    "trainer.seed",
)
_MOST_OF_MODEL = 5  # its own options, in the config's order


def listed(content: Mapping[str, object], chosen: Mapping[str, str], typed: Sequence[str]) -> dict[str, object]:
    """Returns the params of a run's page: groups' options, keys that matter in every run, and what was typed.

    Args:
      content: the resolved config, nested.
      chosen: group to option.
      typed: keys of the command line, as `optimizer.learning_rate`.
    """
    flat = dict(flatten(content))
    axes = content.get("mesh", {}).get("axes", {})  # type: ignore[attr-defined]
    found: dict[str, object] = {group: chosen[group] for group in _GROUPS if group in chosen}
    found["mesh"] = mesh.describe(axes)
    found |= {key: flat[key] for key in _KEYS if key in flat}
    found |= {key: flat[key] for key in [key for key in flat if key.startswith("model.")][1 : 1 + _MOST_OF_MODEL]}
    words = [key.lstrip("+~") for key in typed]
    found |= {key: value for key, value in flat.items() if _is_named(key, words)}
    return found


def _is_named(key: str, words: Sequence[str]) -> bool:
    return any("." in word and (key == word or key.startswith(f"{word}.")) for word in words)
