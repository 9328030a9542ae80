"""Where the rules of the composed layout are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.schema import LayoutConfig


def places(config: LayoutConfig, choices: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Returns a file and line, or an override, for each rule.

    Args:
      config: the composed layout.
      choices: group to option.
      overrides: the command line's.
    """
    del choices, overrides
    return [f"layout.rules[{index}]" for index in range(len(config.rules))]
