"""A module in front of another one, with some of its names replaced."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any


class PatchedModule(types.ModuleType):
    """A module that has what it was given, and everything else of another module."""

    def __init__(self, name: str, behind: types.ModuleType, replaced: Mapping[str, object] | None = None) -> None:
        """Takes the module and what is replaced.

        Args:
          name: as the module calls itself.
          behind: the module whose other names are seen.
          replaced: by name; more can be set.
        """
        super().__init__(name)
        self._behind = behind
        vars(self).update(replaced or {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)
