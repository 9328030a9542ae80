"""Where each rule of a composed layout was written: a line of a config file, or an override."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped]

_LONGEST = 60


def origins(choice: str, overrides: Sequence[str], folders: Sequence[Path], count: int) -> list[str]:
    """Names the place of every rule of the composed layout.

    Args:
      choice: the layout option that was composed, as `megatron`.
      overrides: the command line's, as Hydra lists them.
      folders: of configs, the first that has a file wins.
      count: how many rules the composed layout has.

    Returns:
      One place a rule: "layout/megatron.yaml:12" or "experiment/NAME.yaml:9", relative to its folder of configs, or
      "override layout.rules=...". A file without lines to show (not in the folder, or composed of others) stands
      without a line.
    """
    name = f"layout/{choice}.yaml"
    lines = _rule_lines(folders, name, ("rules",))
    for override in overrides:
        preset = re.fullmatch(r"\+{0,2}experiment=['\"]?([\w/-]+)['\"]?", override)
        preset_lines = preset and _rule_lines(folders, f"experiment/{preset[1]}.yaml", ("layout", "rules"))
        if preset and preset_lines:
            name = f"experiment/{preset[1]}.yaml"
            lines = preset_lines
    exact = len(lines) == count
    found = [f"{name}:{lines[index]}" if exact else name for index in range(count)]
    for override in overrides:
        key = re.match(r"\+{0,2}layout\.rules(?:(?:\.|\[)(\d+))?", override)
        if key is None:
            continue
        for index in range(count) if key[1] is None else [int(key[1])]:
            if index < count:
                found[index] = f"override {_shorten(override)}"
    return found


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _rule_lines(folders: Sequence[Path], name: str, keys: Sequence[str]) -> list[int]:
    """Returns the lines, from 1, of the items of the list under nested keys of a YAML file."""
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        return []
    node = yaml.compose(path.read_text())
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            return []
        node = next((value for name, value in node.value if name.value == key), None)
    return [item.start_mark.line + 1 for item in node.value] if isinstance(node, yaml.SequenceNode) else []
