"""Renamed keys and verdicts: old names are accepted on the command line, in recorded runs and in YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.errors import invalid

# Old name to new name.
KEYS = {"dataset.eval": "dataset.test", "verify.allow_unproven": "verify.allow_inconclusive"}


@dataclass(frozen=True)
class _ShortKey:
    """A key that one command accepts beside the key itself.

    Attributes:
      key: the key itself.
      module: the command.
      elsewhere: what to type in another command.
    """

    key: str
    module: str
    elsewhere: str


_SHORT_KEYS = {
    "prompt": _ShortKey("generate.prompt", "runner.generate", "set task.sample.prompt or evaluate.prompt"),
    "devices": _ShortKey("advise.devices", "runner.advise", "set mesh=batch8, or another mesh"),
    "step": _ShortKey("replay.step", "runner.replay", "set trainer.steps=100, or name a checkpoint: run=latest@100"),
}
_VERDICTS = {"proven": "verified", "not proven": "inconclusive", "differs": "mismatch"}
VERDICT_TAG = "runner.verdict"


def argument(text: str) -> str:
    """Returns an override with the current name of its key.

    Example:
      >>> argument("dataset.eval='test[:100]'")
      "dataset.test='test[:100]'"
    """
    name = text.partition("=")[0].lstrip("+~")
    return text.replace(name, KEYS.get(name, name), 1)


def typed_argument(text: str, module: str) -> str:
    """Returns an override of a command line with the current and full name of its key.

    Args:
      text: the override.
      module: of the command, such as `runner.generate`.

    Raises:
      ConfigError: the key is short for one that only another command reads, so it would be ignored.

    Example:
      >>> typed_argument("prompt=Once", "runner.generate")
      'generate.prompt=Once'
    """
    key, _, value = text.partition("=")
    name = key.lstrip("+~")
    short = _SHORT_KEYS.get(name)
    if short is None:
        return argument(text)
    if short.module != module:
        problem = f"only python -m {short.module} has this key"
        raise invalid(name, value, problem=problem, fix=short.elsewhere)
    return text.replace(name, short.key, 1)


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
