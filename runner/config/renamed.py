"""Former names of keys and verdicts: they are read as the present ones where they were typed or recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Old name to new name.
KEYS = {"dataset.eval": "dataset.test", "verify.allow_unproven": "verify.allow_inconclusive"}
_VERDICTS = {"proven": "verified", "not proven": "inconclusive", "differs": "mismatch"}
VERDICT_TAG = "runner.verdict"


def argument(text: str) -> str:
    """Returns an override with its key's present name.

    Example:
      >>> argument("dataset.eval='test[:100]'")
      "dataset.test='test[:100]'"
    """
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    return f"{key[: len(key) - len(name)]}{KEYS.get(name, name)}{equals}{value}"


def verdict(recorded: str) -> str:
    """Returns a verification's verdict, recorded by this or an earlier release, in the present words.

    Example:
      >>> verdict("not proven"), verdict("verified")
      ('inconclusive', 'verified')
    """
    return _VERDICTS.get(recorded, recorded)


def group(name: str, content: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a group's keys by their present names.

    A preset of an earlier release says the old name, beside the new one's default. A value under the new name that is
    not the default was typed, or stands in a preset that builds on that one: it wins.

    Args:
      name: of the group, as `dataset`.
      content: its keys and values.
      defaults: the group's, by present name.

    Example:
      >>> group("dataset", {"eval": "test[:100]", "test": "test"}, {"test": "test"})
      {'test': 'test[:100]'}
      >>> group("dataset", {"eval": "test[:100]", "test": "test[:5]"}, {"test": "test"})
      {'test': 'test[:5]'}
    """
    found = dict(content)
    for old, new in KEYS.items():
        of, _, key = old.partition(".")
        if of == name and key in found:
            present = new.partition(".")[2]
            value = found.pop(key)
            if found.get(present, defaults.get(present)) == defaults.get(present):
                found[present] = value
    return found
