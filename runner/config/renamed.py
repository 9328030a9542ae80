"""Renamed keys and verdicts: old names are accepted on the command line, in recorded runs and in YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Old name to new name.
KEYS = {"dataset.eval": "dataset.test", "verify.allow_unproven": "verify.allow_inconclusive"}
# Short for a key: what the command line accepts beside the key itself.
_SHORT_KEYS = {"prompt": "generate.prompt", "devices": "advise.devices", "step": "replay.step"}
_VERDICTS = {"proven": "verified", "not proven": "inconclusive", "differs": "mismatch"}
VERDICT_TAG = "runner.verdict"


def argument(text: str) -> str:
    """Returns an override with the current name of its key.

    Example:
      >>> argument("dataset.eval='test[:100]'")
      "dataset.test='test[:100]'"
      >>> argument("prompt=Once")
      'generate.prompt=Once'
    """
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    current = KEYS.get(name) or _SHORT_KEYS.get(name, name)
    return f"{key[: len(key) - len(name)]}{current}{equals}{value}"


def verdict(recorded: str) -> str:
    """Returns the verdict of a verification in the present words.

    This or an earlier release recorded it.

    Example:
      >>> verdict("not proven"), verdict("verified")
      ('inconclusive', 'verified')
    """
    return _VERDICTS.get(recorded, recorded)


def group(name: str, content: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a group by their current names.

    A preset for an earlier release sets the old name, while the new one has its default. A value of the new name that
    is not the default was typed, or comes from a preset that builds on that one, and takes precedence.

    Args:
      name: the name of the group, as `dataset`.
      content: its keys and values.
      defaults: values of the current names.

    Example:
      >>> group("dataset", {"eval": "test[:100]", "test": "test"}, {"test": "test"})
      {'test': 'test[:100]'}
      >>> group("dataset", {"eval": "test[:100]", "test": "test[:5]"}, {"test": "test"})
      {'test': 'test[:5]'}
    """
    renamed = dict(content)
    for old, new in KEYS.items():
        group_name, _, old_key = old.partition(".")
        if group_name != name or old_key not in renamed:
            continue
        new_key = new.partition(".")[2]
        value = renamed.pop(old_key)
        default = defaults.get(new_key)
        if renamed.get(new_key, default) == default:
            renamed[new_key] = value
    return renamed
