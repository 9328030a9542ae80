# ruff: noqa: D102 - a source overrides what FileConfigSource documents
"""Hydra plugins of the runner: the user's folders of options.

Hydra finds plugins as the classes of the modules in this folder. It imports this one with every command, so it imports
nothing heavy.
"""

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.plugins.search_path_plugin import SearchPathPlugin

from runner.config.search_path import PRIMARY, SHARED, user_folders
from runner.host import paths

# Hydra's provider of the program's own folder.
_MAIN = "main"

# Schemes of the two kinds of folders, and the provider of the user's, as `--info searchpath` shows them.
_OWN = "own"
_BUILT_IN = "built-in"


class OptionSource(FileConfigSource):
    """The program's folder of options, listed without files of shared keys."""

    @staticmethod
    def scheme() -> str:
        return _BUILT_IN

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names = super().list(config_path, results_filter)
        return [name for name in names if not name.startswith(SHARED)]


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


class OwnOptions(SearchPathPlugin):
    """Puts the user's folders of options on the search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Adds the folders if the program is ours: other programs of this environment have this plugin too."""
        built_in = paths.conf_dir()
        ours = []
        for element in search_path.get_path():
            if element.provider == _MAIN and element.path in (str(built_in), f"file://{built_in}"):
                ours.append(element)
        if not ours:
            return
        for element in ours:
            # Lists no files of shared keys.
            element.path = f"{_BUILT_IN}://{built_in}"
        for folder in user_folders():
            search_path.prepend(_OWN, f"{_OWN}://{folder}", SearchPathQuery(provider=_MAIN))
        _make_default("hydra/launcher", "processes")
        _make_default("hydra/sweeper", "grid")


def _make_default(group: str, option: str) -> None:
    """Makes `basic`, Hydra's default of a group, an alias of one of our options.

    An override in our own defaults list would win over one in a preset, which then could not choose another.
    """
    ConfigStore.instance().store(group=group, name="basic", node={"defaults": [option]}, provider="runner")
