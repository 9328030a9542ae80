# ruff: noqa: D102 - a source overrides what FileConfigSource documents
"""Search path of config options: the user's own folders first, then the program's.

The user's folders are that of `--config-dir` and `conf` in the current directory. An own option hides the built-in one
of the same name, except for `config.yaml`: the groups that a run consists of are the program's.

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
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig

from runner.host import paths, session

FLAG = "--config-dir"
_FLAGS = (FLAG, "-cd")
NAME_FLAG = "--config-name"
KEY = "hydra.searchpath"
PRIMARY = "config"

# Keys of the command line that are in no group.
KEYS_WITHOUT_GROUP = ("resume", "name", "branch", "run")

# Hydra's provider of the program's own folder.
_MAIN = "main"

# Schemes of the two kinds of folders, and the provider of the user's, as `--info searchpath` shows them.
_OWN = "own"
_BUILT_IN = "built-in"

# First letter of files that are not options.
_SHARED = "_"
# Hydra's name, in a defaults list, for the file itself.
_SELF = "_self_"
_FILE = re.compile(r"file://([^'\",\]]+)")


class OptionSource(FileConfigSource):
    """The program's folder of options, listed without files of shared keys."""

    @staticmethod
    def scheme() -> str:
        return _BUILT_IN

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names = super().list(config_path, results_filter)
        return [name for name in names if not name.startswith(_SHARED)]


class OwnSource(OptionSource):
    """A user's folder of options, without a file that would hide the program's primary config."""

    @staticmethod
    def scheme() -> str:
        return _OWN

    def is_config(self, config_path: str) -> bool:
        return config_path.removesuffix(".yaml") != PRIMARY and super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names = super().list(config_path, results_filter)
        # The primary config is at the top of a folder; below that the name is free.
        if config_path:
            return names
        return [name for name in names if name != PRIMARY]


def portable(argument: str) -> str:
    """Returns a value of `--config-dir`, or an override, whose folder of options is relative to the project if it
    is in it.
    """
    root = paths.project_root()
    if argument.startswith(f"{KEY}="):
        return argument.replace(f"file://{root}/", "file://")
    path = Path(argument)
    if path.is_absolute() and path.is_relative_to(root):
        return str(path.relative_to(root))
    return argument


def is_ours(search_path: ConfigSearchPath) -> bool:
    """Returns whether a search path is of this program: Hydra loads plugins for other programs too."""
    built_in = (str(paths.conf_dir()), f"file://{paths.conf_dir()}")
    return any(element.provider == _MAIN and element.path in built_in for element in search_path.get_path())


def extend(search_path: ConfigSearchPath) -> None:
    """Puts the user's folders before the program's, whose files with shared keys are hidden from listings."""
    for element in search_path.get_path():
        if element.provider == _MAIN:
            element.path = f"{_BUILT_IN}://{paths.conf_dir()}"
    for folder in own():
        search_path.prepend(_OWN, f"{_OWN}://{folder}", SearchPathQuery(provider=_MAIN))


def own() -> list[Path]:
    """Returns the user's folders by command line and current directory, absolute; the first wins."""
    user_folders = []
    named = named_folder(session.current().arguments)
    if named is not None:
        user_folders.append(named)
    in_project = paths.project_root() / "conf"
    # The flag may name this very folder, which then counts once.
    if in_project != named and _has_options(in_project):
        user_folders.append(in_project)
    return user_folders


def named_folder(arguments: Sequence[str]) -> Path | None:
    """Returns the last folder of options that a command line names, absolute."""
    named = ""
    for before, argument in pairwise(["", *arguments]):
        flag, _, value = argument.partition("=")
        if before in _FLAGS:
            named = argument
        elif flag in _FLAGS and value:
            named = value
    return Path(named).absolute() if named else None


def folders() -> list[Path]:
    """Returns every folder of options on this machine; the first wins."""
    found = [*own(), paths.conf_dir()]
    for argument in session.current().arguments:
        if argument.lstrip("+").startswith(f"{KEY}="):
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
    return sorted(path.stem for path in folder.glob("*.yaml") if not path.name.startswith(_SHARED))


def file_of(config: str) -> Path:
    """Returns the file of an option, as `model/mlp`; if there is none, where a built-in one would be."""
    for folder in folders():
        file = folder / f"{config}.yaml"
        if file.is_file():
            return file
    return paths.conf_dir() / f"{config}.yaml"


def readable_content_of(config: str) -> dict[str, Any]:
    """Returns what `content_of` does, or no keys if it can't be read.

    For hints in another error, which a broken file of the user's must not hide.
    """
    try:
        return content_of(config)
    # UnicodeDecodeError is a ValueError, and `defaults: 3` raises a TypeError.
    except (yaml.YAMLError, OSError, AttributeError, TypeError, ValueError):
        return {}


def content_of(config: str) -> dict[str, Any]:
    """Returns the keys of an option, as `model/mlp`, and those that it shares, with interpolations unresolved.

    Raises:
      OSError: there is no such file.
      yaml.YAMLError: the file is not YAML.
      AttributeError: it has no mapping.
    """
    content = yaml.safe_load(file_of(config).read_text("utf-8"))
    shared: dict[str, Any] = {}
    for name in content.get("defaults") or []:
        if isinstance(name, str) and name.startswith(_SHARED) and name != _SELF:
            shared |= content_of(f"{config.rpartition('/')[0]}/{name}")
    content.pop("defaults", None)
    return {**shared, **content}


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


def replaced(composed: DictConfig) -> Iterator[str]:
    """Yields a note for each of the user's options that hides a built-in one, and for a config that is not read."""
    for folder in own():
        name = paths.shown(folder)
        if (folder / f"{PRIMARY}.yaml").is_file():
            yield f"{name}/{PRIMARY}.yaml is ignored: only options can be replaced; use {name}/experiment/mine.yaml"
        for group, option in composed.hydra.runtime.choices.items():
            file = f"{group}/{option}.yaml"
            if (folder / file).is_file() and (paths.conf_dir() / file).is_file():
                yield f"{name}/{file} is used instead of the built-in {group}={option}"
