"""Where a DTensor engine's models come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from runner.config.schema import RunConfig
from runner.engine.base import Array, LayerOutput


class Source(Protocol):
    """Makes a config's model, on one device and on a mesh, and knows its variables.

    A model is called with images in [0, 1] and `training`, and has `losses`, `submodules` and `trainable_variables`.

    Attributes:
      lets_users_place: a user's builder is handed layouts, and may compute on the mesh.
    """

    lets_users_place: bool

    def plain(self) -> Any:
        """Returns the model on one device, its weights drawn from the seed."""
        ...

    def on_mesh(self, mesh: Any, layouts: Mapping[str, Any]) -> Any:
        """Returns the model with every variable under its layout."""
        ...

    def variables(self, model: Any) -> dict[str, Any]:
        """Returns canonical path to variable, in the model's order."""
        ...

    def check(self, model: Any, config: RunConfig) -> None:
        """Raises ConfigError for a plain model that no mesh can train."""
        ...

    def whole(self, model: Any) -> set[str]:
        """Returns the paths of variables that operations need whole."""
        ...

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns what every layer gives for a batch."""
        ...

    def exported(self, values: Mapping[str, Array]) -> Any:
        """Returns a plain model of the framework's own layers with these weights."""
        ...
