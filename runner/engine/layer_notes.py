"""Notes what a model's layers take and give while one of its calls is traced, for the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from runner.engine.base import INPUTS, LayerInput, LayerOutput


class Shaped(Protocol):
    """A tensor of TensorFlow or JAX while a call is traced."""

    @property
    def shape(self) -> Sequence[int]:
        """Its whole shape."""
        ...

    @property
    def dtype(self) -> object:
        """TensorFlow's type or NumPy's."""
        ...


class Outputs:
    """What the layers called so far gave.

    Attributes:
      found: one entry a tensor, in the order of the calls.
    """

    def __init__(self, inputs: Shaped | Mapping[str, Shaped]) -> None:
        """Begins a call.

        Args:
          inputs: what the model is called with.
        """
        self.found: list[LayerOutput] = []
        named = (
            {f"{INPUTS}/{name}": x for name, x in inputs.items()} if isinstance(inputs, Mapping) else {INPUTS: inputs}
        )
        self._givers = {id(x): giver for giver, x in named.items()}
        self._kept = [*named.values()]  # so that no other tensor gets its id

    def note(self, layer: str, kind: str, taken: Iterable[Shaped], given: Iterable[Shaped]) -> None:
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


def _name(dtype: object) -> str:
    """Returns `float32` for TensorFlow's type and for numpy's."""
    return str(getattr(dtype, "name", dtype))
