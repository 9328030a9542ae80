"""The best candidate as a preset: a file of options, and the command that applies it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from omegaconf import DictConfig

from runner.advise import words
from runner.config import typed
from runner.config.compose import compose
from runner.config.search_path import FLAG, KEY, NAME_FLAG
from runner.host import session

_NAME = "advised"
_GROUP = "experiment"
# Paths that Hydra's grammar reads without quotes.
_PLAIN = re.compile(r"[A-Za-z][\w./:-]*", re.ASCII)


def write(folder: Path, training: Sequence[str], wanted: DictConfig) -> str | None:
    """Writes the preset into a folder of options.

    Args:
      folder: named as commands name it.
      training: overrides of the training command.
      wanted: what that command composes.

    Returns:
      The command that applies the preset; None, and no file: a preset can't say the same. Its `mesh.axes` are merged
      with those of another preset that it includes, for one.
    """
    file = folder / _GROUP / f"{_NAME}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    arguments = [*folders(folder, typed.composed_with(), HydraConfig.get().searchpath), f"{_GROUP}={_NAME}"]
    command = shlex.join(["python", "-m", "runner", *arguments])
    file.write_text(text(training, command))
    # The file is written before it is checked, because the command composes it.
    if is_same(arguments, wanted):
        return command
    file.unlink()
    return None


def folders(folder: Path, arguments: Sequence[str], search_path: Sequence[str]) -> list[str]:
    """Returns the arguments that name a preset's folder, beside the user's own folders of options.

    A command line has one `--config-dir`. If the user's has it, its folder stays there, because options in it may hide
    built-in ones, and the preset's is searched last.

    Args:
      folder: of the preset.
      arguments: of the command line, beside overrides.
      search_path: the folders of `hydra.searchpath`.
    """
    if not any(argument.startswith(f"{FLAG}=") for argument in arguments):
        return [f"{FLAG}={folder.as_posix()}", *arguments]
    # A later value of `hydra.searchpath` would replace an earlier one, so one value has the user's folders and the
    # preset's.
    others = [argument for argument in arguments if not argument.startswith(f"{KEY}=")]
    paths = ",".join(_as_element(path) for path in (*search_path, f"file://{folder.as_posix()}"))
    return [*others, f"{KEY}=[{paths}]"]


def _as_element(path: str) -> str:
    """Returns a path as an element of a list in Hydra's grammar, in quotes only if it needs them."""
    if _PLAIN.fullmatch(path):
        return path
    escaped = path.replace("'", "\\'")
    return f"'{escaped}'"


def is_same(arguments: Sequence[str], wanted: DictConfig) -> bool:
    """Returns whether a command composes a config.

    Args:
      arguments: of the command.
      wanted: the config.
    """
    if any(argument.startswith(f"{NAME_FLAG}=") for argument in arguments):
        # Only the program's primary config is composed here.
        return True
    with session.composing(arguments):
        composed = words.content(compose([argument for argument in arguments if not argument.startswith("--")]))
    content = words.content(wanted)
    # Dicts are equal in any order of their keys, but the order of the mesh axes numbers the devices.
    return composed == content and words.axes_of(composed) == words.axes_of(content)


def text(overrides: Sequence[str], command: str) -> str:
    """Returns overrides as a preset, YAML that `experiment=<name>` applies.

    Args:
      overrides: of a training command. Deletions (`~key`) have no counterpart in a preset and are left out.
      command: that applies the preset.
    """
    import yaml  # type: ignore[import-untyped] # only this command writes YAML

    options: list[Any] = []
    content: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_delete():
            continue
        key = override.key_or_group
        value = _plain(override.value())
        is_group = "." not in key and isinstance(value, str) and key not in ("name", "branch", "run", "resume")
        # Hydra 1.3 rejects a defaults list with an option after an override, so the preset that this one includes
        # comes first.
        if is_group and key == "experiment":
            options.insert(0, value)
        elif is_group:
            options.append({f"override /{key}": value})
        else:
            _set(content, key.split("."), value)
    body = {"defaults": [*options, "_self_"], **content}
    dumped = yaml.safe_dump(body, sort_keys=False, default_flow_style=False, width=110)
    return f"# @package _global_\n# The advice of runner.advise.\n#   {command}\n{dumped}"


def _set(content: dict[str, Any], names: Sequence[str], value: object) -> None:
    for name in names[:-1]:
        content = content.setdefault(name, {})
    existing = content.get(names[-1])
    if isinstance(existing, dict) and isinstance(value, Mapping):
        existing.update(value)
    else:
        content[names[-1]] = value


def _plain(value: object) -> Any:
    """Returns a parsed value with plain strings and keys."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
