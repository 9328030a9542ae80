"""Search path of config options: the user's own folders first, then the program's.

The user's folders are that of `--config-dir` and `conf` in the current directory. An own option hides the built-in one
of the same name, except for `config.yaml`: the groups that a run consists of are the program's.

A file whose name begins with `_` is no option: it has the keys that the options of its group share, which they include
with `defaults: [_base, _self_]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig

from runner.host import paths, session

FLAG = "--config-dir"
NAME_FLAG = "--config-name"
KEY = "hydra.searchpath"
PRIMARY = "config"

# Hydra's provider of the program's own folder.
_MAIN = "main"

# Schemes of the two kinds of folders, and the provider of the user's, as `--info searchpath` shows them.
_OWN = "own"
_BUILT_IN = "built-in"

_SHARED = "_"  # first letter of files that are no options
_SELF = "_self_"  # Hydra's name, in a defaults list, for the file itself
_FILE = re.compile(r"file://([^'\",\]]+)")


class OptionSource(FileConfigSource):
    """The program's folder of options, whose listings leave out files with shared keys."""

    @staticmethod
    def scheme() -> str:
        """Returns the scheme of such folders in Hydra's search path."""
        return _BUILT_IN

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Returns the names of the options and groups in a folder."""
        names = super().list(config_path, results_filter)
        return [name for name in names if not name.startswith(_SHARED)]


class OwnSource(OptionSource):
    """A user's folder of options, without a file that would hide the program's primary config."""

    @staticmethod
    def scheme() -> str:
        """Returns the scheme of such folders in Hydra's search path."""
        return _OWN

    def is_config(self, config_path: str) -> bool:
        """Returns whether there is such a file."""
        return config_path.removesuffix(".yaml") != PRIMARY and super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Returns the names of the options and groups in a folder."""
        names = super().list(config_path, results_filter)
        return names if config_path else [name for name in names if name != PRIMARY]


def portable(argument: str) -> str:
    """Returns an argument whose folder of options, if it is in the project, is relative to the project.

    Args:
      argument: the value of `--config-dir`, or an override.
    """
    root = paths.project_root()
    if argument.startswith(f"{KEY}="):
        return argument.replace(f"file://{root}/", "file://")
    path = Path(argument)
    is_in_project = path.is_absolute() and path.is_relative_to(root)
    return str(path.relative_to(root)) if is_in_project else argument


def is_ours(search_path: ConfigSearchPath) -> bool:
    """Returns whether a search path is of this program; Hydra loads plugins for other programs too."""
    built_in = (str(paths.conf_dir()), f"file://{paths.conf_dir()}")
    return any(element.provider == _MAIN and element.path in built_in for element in search_path.get_path())


def extend(search_path: ConfigSearchPath) -> None:
    """Puts the user's folders before the program's, and hides the program's files with shared keys from listings."""
    for element in search_path.get_path():
        if element.provider == _MAIN:
            element.path = f"{_BUILT_IN}://{paths.conf_dir()}"
    for folder in own():
        search_path.prepend(_OWN, f"{_OWN}://{folder}", SearchPathQuery(provider=_MAIN))


def own() -> list[Path]:
    """Returns the user's folders for this command line and current directory, absolute; the first wins."""
    named = [Path(value).absolute() for value in _values(session.current().arguments, (FLAG, "-cd"))[-1:]]
    in_project = paths.project_root() / "conf"
    return [*named, *([in_project] if in_project not in named and _has_options(in_project) else [])]


def folders() -> list[Path]:
    """Returns every folder of options on this machine; the first wins."""
    arguments = session.current().arguments
    typed = " ".join(argument for argument in arguments if argument.lstrip("+").startswith(f"{KEY}="))
    return [*own(), paths.conf_dir(), *map(Path, _FILE.findall(typed))]


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


def content_of(config: str) -> dict[str, Any]:
    """Returns the keys of an option, those that it shares with others included; interpolations are not resolved.

    Args:
      config: as `model/mlp`.

    Raises:
      OSError: there is no such file.
      yaml.YAMLError: the file is no YAML.
      AttributeError: it has no mapping.
    """
    import yaml  # type: ignore[import-untyped] # only error messages and tests need it

    content = yaml.safe_load(file_of(config).read_text("utf-8"))
    shared: dict[str, Any] = {}
    for name in content.get("defaults", []):
        if isinstance(name, str) and name.startswith(_SHARED) and name != _SELF:
            shared |= content_of(f"{config.rpartition('/')[0]}/{name}")
    own_keys = {key: value for key, value in content.items() if key != "defaults"}
    return shared | own_keys


def _has_options(folder: Path) -> bool:
    """Returns whether a folder named `conf` has options for this program: other programs have such folders too."""
    built_in = paths.conf_dir()
    if not folder.is_dir() or folder.resolve() == built_in.resolve():
        return False
    groups = [path.name for path in built_in.iterdir() if path.is_dir() and path.name != "hydra"]
    return any(options_in(folder / group) for group in groups)


def _values(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the values of a flag on a command line."""
    values = list[str]()
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name in names:
            values.append(value if equals else next(remaining, ""))
    return [value for value in values if value]


def searchpath(arguments: Sequence[str]) -> list[str]:
    """Returns the folders of options that a command line names, as an override, in the order of precedence."""
    typed = [argument for argument in arguments if argument.lstrip("+").startswith(f"{KEY}=")]
    if typed:
        return typed[-1:]
    overrides = []
    for value in _values(arguments, (FLAG, "-cd"))[-1:]:
        folder = Path(value).absolute().as_posix().replace("'", "\\'")
        overrides.append(f"{KEY}=['file://{folder}']")
    return overrides


def replaced(composed: DictConfig) -> Iterator[str]:
    """Yields a note for each of the user's options that hides a built-in one, and for a config that is not read.

    Args:
      composed: with Hydra's own part.
    """
    for folder in own():
        name = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        if (folder / f"{PRIMARY}.yaml").is_file():
            yield f"{name / PRIMARY}.yaml is ignored: only options can be replaced; use {name}/experiment/mine.yaml"
        for group, option in composed.hydra.runtime.choices.items():
            file = f"{group}/{option}.yaml"
            if (folder / file).is_file() and (paths.conf_dir() / file).is_file():
                yield f"{name / file} is used instead of the built-in {group}={option}"
