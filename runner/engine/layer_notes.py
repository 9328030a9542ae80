"""Notes what a model's layers take and give while one of its calls is traced, for the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

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
    """What the layers gave in the call of a model that was traced last.

    Attributes:
      found: one entry a tensor, in the order of the calls.
    """

    def __init__(self, paths: Mapping[int, str], tensors: Callable[[object], Iterable[Shaped]]) -> None:
        """Takes what tells layers and tensors.

        Args:
          paths: id of a layer -> canonical path; a layer that is not among them goes by its name.
          tensors: gives those of a structure of arguments or results.
        """
        self._paths = paths
        self._tensors = tensors

    def begin(self, inputs: Shaped | Mapping[str, Shaped]) -> None:
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

    def recorded(self, layer: Any, call: Callable[..., object]) -> Callable[..., object]:
        """Returns what to call in place of a layer's own `call`."""

        def wrapped(*args: object, **kwargs: object) -> object:
            outputs = call(*args, **kwargs)
            path = self._paths.get(id(layer), layer_path(layer.name))
            taken = [
                LayerInput(self._givers.get(id(each), ""), tuple(each.shape)) for each in self._tensors((args, kwargs))
            ]
            for each in self._tensors(outputs):
                dtype = str(getattr(each.dtype, "name", each.dtype))
                self.found.append(LayerOutput(path, type(layer).__name__, tuple(each.shape), dtype, tuple(taken)))
                self._givers[id(each)] = path
                self._kept.append(each)
            return outputs

        return wrapped


def layer_path(name: str) -> str:
    """Returns a layer's canonical path: `block_0/mlp/up` of `block_0.mlp.up`; Keras 3 allows no slash in names."""
    return name.replace(".", "/")
