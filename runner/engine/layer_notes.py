"""Notes what a model's layers take and give while one of its calls is traced, for the plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runner.engine.base import IMAGES, LayerInput, LayerOutput


class Outputs:
    """What the layers called so far gave.

    Attributes:
      found: one entry a tensor, in the order of the calls.
    """

    def __init__(self, images: Any) -> None:
        """Begins a call.

        Args:
          images: what the model is called with.
        """
        self.found: list[LayerOutput] = []
        self._givers = {id(images): IMAGES}
        self._kept = [images]  # so that no other tensor gets its id

    def note(self, layer: str, kind: str, taken: Iterable[Any], given: Iterable[Any]) -> None:
        """Notes one call of a layer.

        Args:
          layer: canonical path.
          kind: the layer's class.
          taken: tensors.
          given: tensors.
        """
        inputs = tuple(LayerInput(self._givers.get(id(each), ""), tuple(each.shape)) for each in taken)
        for each in given:
            self.found.append(LayerOutput(layer, kind, tuple(each.shape), _name(each.dtype), inputs))
            self._givers[id(each)] = layer
            self._kept.append(each)


def _name(dtype: Any) -> str:
    """Returns `float32` for TensorFlow's type and for numpy's."""
    return str(getattr(dtype, "name", dtype))
