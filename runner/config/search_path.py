"""Search path of config options: the user's own folders first, then the program's, then those of `hydra.searchpath`.

The user's folders are that of `--config-dir` and `conf` in the current directory. Their options hide built-in ones
of the same name, except for `config.yaml`: the groups that a run consists of are the program's. The plugin
`hydra_plugins.runner_sweep` sets this path in Hydra.

A file whose name begins with `_` is not an option: it has the keys that the options of its group share. They include
it with `defaults: [_base, _self_]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig

from runner.host import paths, session

# The flag of one folder of options, and the key of more.
FOLDER_FLAG = "--config-dir"
_FOLDER_FLAGS = (FOLDER_FLAG, "-cd")
FOLDERS_KEY = "hydra.searchpath"
# The flag of the primary config, and its default.
NAME_FLAG = "--config-name"
PRIMARY = "config"

# First letter of files that are not options.
SHARED = "_"
# Hydra's name, in a defaults list, for the file itself.
_SELF = "_self_"
# A folder in a value of FOLDERS_KEY.
_FILE = re.compile(r"file://([^'\",\]]+)")


def user_folders() -> list[Path]:
    """Returns the user's folders by command line and current directory, absolute; the first wins."""
    found = []
    named = named_folder(session.current().arguments)
    if named is not None:
        found.append(named)
    in_project = paths.project_root() / "conf"
    # The flag may name this very folder, which then counts once.
    if in_project != named and _has_options(in_project):
        found.append(in_project)
    return found


def _has_options(folder: Path) -> bool:
    """Returns whether a folder named `conf` has options for this program: others have such folders too."""
    built_in = paths.conf_dir()
    if not folder.is_dir() or folder.resolve() == built_in.resolve():
        return False
    for group in built_in.iterdir():
        # Any Hydra application may have options for Hydra's own groups.
        if group.is_dir() and group.name != "hydra" and options_in(folder / group.name):
            return True
    return False


def named_folder(arguments: Sequence[str]) -> Path | None:
    """Returns the last folder of options that a command line names, absolute."""
    named = ""
    # `--config-dir FOLDER` or `--config-dir=FOLDER`.
    for before, argument in pairwise(["", *arguments]):
        flag, _, value = argument.partition("=")
        if before in _FOLDER_FLAGS:
            named = argument
        elif flag in _FOLDER_FLAGS and value:
            named = value
    return Path(named).absolute() if named else None


def sets_folders(argument: str) -> bool:
    """Returns whether an argument sets Hydra's search path; with `+` or `++` before the key it does not."""
    return argument.startswith(f"{FOLDERS_KEY}=")


def relative_to_project(argument: str) -> str:
    """Returns a value of FOLDER_FLAG, or an override of FOLDERS_KEY, with a folder of the project relative to that."""
    root = paths.project_root()
    if sets_folders(argument):
        return argument.replace(f"file://{root}/", "file://")
    path = Path(argument)
    if path.is_absolute() and path.is_relative_to(root):
        return str(path.relative_to(root))
    return argument


def folders() -> list[Path]:
    """Returns the user's folders, the program's and those of FOLDERS_KEY without `pkg://` entries; the first wins."""
    found = [*user_folders(), paths.conf_dir()]
    for argument in session.current().arguments:
        if sets_folders(argument):
            found += map(Path, _FILE.findall(argument))
            # Of several such overrides, Hydra takes the first.
            break
    return found


def options(group: str) -> list[str]:
    """Returns the options of a group, sorted."""
    names = set[str]()
    for folder in folders():
        names |= set(options_in(folder / group))
    return sorted(names)


def options_in(folder: Path) -> list[str]:
    """Returns the options in the folder of a group, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml") if not path.name.startswith(SHARED))


def file_of(config: str) -> Path:
    """Returns the file of an option, such as `model/mlp`; if there is none, where a built-in one would be."""
    for folder in folders():
        file = folder / f"{config}.yaml"
        if file.is_file():
            return file
    return paths.conf_dir() / f"{config}.yaml"


def content_of(config: str) -> dict[str, Any]:
    """Returns the keys of an option, such as `model/mlp`, and those that it shares, with interpolations unresolved.

    Only top-level keys are merged, and the option's own win; Hydra also merges mappings that both files have.

    Raises:
      OSError: there is no such file.
      yaml.YAMLError: the file is not YAML.
      AttributeError: it has no mapping.
    """
    content = yaml.safe_load(file_of(config).read_text("utf-8"))
    shared: dict[str, Any] = {}
    for name in content.get("defaults") or []:
        if isinstance(name, str) and name.startswith(SHARED) and name != _SELF:
            shared |= content_of(f"{config.rpartition('/')[0]}/{name}")
    content.pop("defaults", None)
    return {**shared, **content}


def readable_content_of(config: str) -> dict[str, Any]:
    """Returns what `content_of` does, or no keys if it can't be read.

    For hints in another error, which a broken file of the user's must not hide.
    """
    try:
        return content_of(config)
    # UnicodeDecodeError is a ValueError, and `defaults: 3` raises a TypeError.
    except (yaml.YAMLError, OSError, AttributeError, TypeError, ValueError):
        return {}


def replacement_notes(composed: DictConfig) -> Iterator[str]:
    """Yields a note for each of the user's options that hides a built-in one, and for a config that is not read."""
    for folder in user_folders():
        name = paths.shown(folder)
        if (folder / f"{PRIMARY}.yaml").is_file():
            yield f"{name}/{PRIMARY}.yaml is ignored: only options can be replaced; use {name}/experiment/mine.yaml"
        for group, option in composed.hydra.runtime.choices.items():
            file = f"{group}/{option}.yaml"
            if (folder / file).is_file() and (paths.conf_dir() / file).is_file():
                yield f"{name}/{file} is used instead of the built-in {group}={option}"
