"""Hydra plugins of the runner: the user's folders of options.

Hydra imports this module with every command, so it imports nothing heavy.

Hydra finds plugins as classes that are defined here, hence the subclasses without a body.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin

from runner.config import search_path as own


class OptionSource(own.OptionSource):
    """The program's folder of options."""


class OwnSource(own.OwnSource):
    """A user's folder of options."""


class OwnOptions(SearchPathPlugin):
    """Puts the user's folders of options on the search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Adds the folders if the program is ours: other programs of this environment have this plugin too."""
        if own.is_ours(search_path):
            own.extend(search_path)
            _make_default("hydra/launcher", "processes")
            _make_default("hydra/sweeper", "grid")


def _make_default(group: str, option: str) -> None:
    """Makes `basic`, Hydra's default of a group, an alias of one of our options.

    An override in our own defaults list would win over one in a preset, which then could not choose another.
    """
    ConfigStore.instance().store(group=group, name="basic", node={"defaults": [option]}, provider="runner")
