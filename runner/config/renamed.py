"""Keys that had another name before: the old one is taken where it is typed, recorded or stands in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS = {"dataset.eval": "dataset.test"}  # old -> new


def argument(text: str) -> str:
    """Returns an override with its key's present name.

    Example:
      >>> argument("dataset.eval='test[:100]'")
      "dataset.test='test[:100]'"
    """
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    return f"{key[: len(key) - len(name)]}{KEYS.get(name, name)}{equals}{value}"


def group(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a group's keys by their present names; what stands under the old name wins, an option has the new one.

    Args:
      name: of the group, as `dataset`.
      content: its keys and values.
    """
    found = dict(content)
    for old, new in KEYS.items():
        of, _, key = old.partition(".")
        if of == name and key in found:
            found[new.partition(".")[2]] = found.pop(key)
    return found
