"""A module in front of another one, with some of its names replaced."""

from __future__ import annotations

import types
from typing import Any


class Facade(types.ModuleType):
    """A module that has what was set on it, and everything else of another module."""

    def __init__(self, name: str, behind: Any) -> None:
        """Sets nothing yet.

        Args:
          name: as the module calls itself.
          behind: the module whose names are seen where none was set.
        """
        super().__init__(name)
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)
