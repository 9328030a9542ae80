"""Where groups' options are found: in folders of the user's own first, then in the program's.

Own folders are that of `--config-dir` and `conf` in the current directory. An own option hides the program's of the
same name. Not so `config.yaml`: what a run consists of is the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig

from runner.host import paths, session

FLAG = "--config-dir"
NAME_FLAG = "--config-name"
KEY = "hydra.searchpath"
PRIMARY = "config"
_OWN = "own"  # scheme and provider, as `--info searchpath` shows them
_FILE = re.compile(r"file://([^'\",\]]+)")


class OwnSource(FileConfigSource):
    """A user's folder of options, without the file that stands where the program's primary config does."""

    @staticmethod
    def scheme() -> str:
        """Returns by what Hydra knows such a folder."""
        return _OWN

    def is_config(self, config_path: str) -> bool:
        """Returns whether there is such a file."""
        return config_path.removesuffix(".yaml") != PRIMARY and super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Returns the names in a folder of it."""
        found = super().list(config_path, results_filter)
        return found if config_path else [name for name in found if name != PRIMARY]


def portable(argument: str) -> str:
    """Returns an argument with the folder of options that it names, if that lies in the project, named from there.

    Args:
      argument: the value of `--config-dir`, or an override.
    """
    root = paths.project_root()
    if argument.startswith(f"{KEY}="):
        return argument.replace(f"file://{root}/", "file://")
    path = Path(argument)
    return str(path.relative_to(root)) if path.is_absolute() and path.is_relative_to(root) else argument


def is_ours(search_path: ConfigSearchPath) -> bool:
    """Returns whether a search path is of this program."""
    ours = (str(paths.conf_dir()), f"file://{paths.conf_dir()}")
    return any(one.provider == "main" and one.path in ours for one in search_path.get_path())


def extend(search_path: ConfigSearchPath) -> None:
    """Puts the user's folders before the program's."""
    for folder in own():
        search_path.prepend(_OWN, f"{_OWN}://{folder}", SearchPathQuery(provider="main"))


def own() -> list[Path]:
    """Returns the user's folders by this process's command line and current directory, absolute; the first wins."""
    named = [Path(value).absolute() for value in _values(session.current().arguments, (FLAG, "-cd"))[-1:]]
    found = paths.project_root() / "conf"
    return [*named, *([found] if found not in named and _holds_options(found) else [])]


def folders() -> list[Path]:
    """Returns every folder of options on this machine, the first wins."""
    typed = " ".join(one for one in session.current().arguments if one.lstrip("+").startswith(f"{KEY}="))
    return [*own(), paths.conf_dir(), *map(Path, _FILE.findall(typed))]


def options(group: str) -> list[str]:
    """Returns the options of a group, sorted."""
    return sorted({path.stem for folder in folders() for path in (folder / group).glob("*.yaml")})


def file_of(config: str) -> Path:
    """Returns the file of an option, as `model/mlp`; where there is none, the place for one of the program's."""
    files = [folder / f"{config}.yaml" for folder in folders()]
    return next((file for file in files if file.is_file()), paths.conf_dir() / f"{config}.yaml")


def _holds_options(folder: Path) -> bool:
    """Returns whether a folder named `conf` is of this program's user: other programs have such folders too."""
    ours = paths.conf_dir()
    if not folder.is_dir() or folder.resolve() == ours.resolve():
        return False
    groups = [one.name for one in ours.iterdir() if one.is_dir() and one.name != "hydra"]
    return any(next((folder / group).glob("*.yaml"), None) for group in groups)


def _values(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the values of a flag on a command line."""
    found = list[str]()
    rest = iter(arguments)
    for one in rest:
        name, equals, value = one.partition("=")
        if name in names:
            found.append(value if equals else next(rest, ""))
    return [value for value in found if value]


def searchpath(arguments: Sequence[str]) -> list[str]:
    """Returns of a command line, as an override, the folders of options that it names, in the order of precedence."""
    typed = [one for one in arguments if one.lstrip("+").startswith(f"{KEY}=")]
    named = [Path(value).absolute().as_posix() for value in _values(arguments, (FLAG, "-cd"))[-1:]]
    quoted = ["'file://{}'".format(one.replace("'", "\\'")) for one in named]
    return typed[-1:] or [f"{KEY}=[{one}]" for one in quoted]


def replaced(composed: DictConfig) -> Iterator[str]:
    """Yields a line for each option of this config that hides one of the program's, and for what is not read.

    Args:
      composed: with Hydra's own part.
    """
    for folder in own():
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        if (folder / f"{PRIMARY}.yaml").is_file():
            yield f"{shown / PRIMARY}.yaml is not read, the program's stands; put it into {shown}/experiment/mine.yaml"
        for group, option in composed.hydra.runtime.choices.items():
            name = f"{group}/{option}.yaml"
            if (folder / name).is_file() and (paths.conf_dir() / name).is_file():
                yield f"{shown / name} stands in place of the program's own {group}={option}"
