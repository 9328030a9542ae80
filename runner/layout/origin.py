"""Origin of each rule of a composed layout: a line of a config file, or an override."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped]

# Longer overrides are cut: an origin is one cell of the plan's table.
_LONGEST_OVERRIDE = 60

_EXPERIMENT_OVERRIDE = re.compile(r"\+{0,2}experiment=['\"]?([\w/-]+)['\"]?")
# With the index of a rule if the override sets a single one.
_RULES_OVERRIDE = re.compile(r"\+{0,2}layout\.rules(?:(?:\.|\[)(\d+))?")


def origins(choice: str, overrides: Sequence[str], folders: Sequence[Path], count: int) -> list[str]:
    """Returns the origin of every rule of the composed layout option `choice`, of which there are `count`.

    It is `layout/megatron.yaml:12` or `experiment/NAME.yaml:9`, relative to the first config folder that has the file,
    or `override layout.rules=...`. The line is left out if the file is in no folder or does not have all rules.
    """
    file = f"layout/{choice}.yaml"
    lines = _rule_lines(folders, file, ("rules",))
    # An experiment is merged after the layout, so its rules replace those of the layout.
    for override in overrides:
        experiment = _EXPERIMENT_OVERRIDE.fullmatch(override)
        if experiment is None:
            continue
        experiment_file = f"experiment/{experiment[1]}.yaml"
        experiment_lines = _rule_lines(folders, experiment_file, ("layout", "rules"))
        if experiment_lines:
            file = experiment_file
            lines = experiment_lines
    by_rule = [file] * count
    if len(lines) == count:
        by_rule = [f"{file}:{line}" for line in lines]
    for override in overrides:
        rules_key = _RULES_OVERRIDE.match(override)
        if rules_key is None:
            continue
        origin = f"override {_shortened(override)}"
        if rules_key[1] is None:
            by_rule = [origin] * count
        elif int(rules_key[1]) < count:
            by_rule[int(rules_key[1])] = origin
    return by_rule


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_OVERRIDE:
        return text
    return text[: _LONGEST_OVERRIDE - 3] + "..."


def _rule_lines(folders: Sequence[Path], file: str, keys: Sequence[str]) -> list[int]:
    """Returns the line numbers, from 1, of the items of the list to which nested keys lead in a YAML file."""
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        return []
    node = yaml.compose(path.read_text())
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            return []
        node = next((value for name, value in node.value if name.value == key), None)
    if not isinstance(node, yaml.SequenceNode):
        return []
    return [item.start_mark.line + 1 for item in node.value]
