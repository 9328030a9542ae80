"""Records the inputs and outputs of a model's layers while a call is traced.

The plan reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from runner.engine.base import INPUTS, LayerInput, LayerOutput
from runner.engine.mappings import keys_by_id


class Shaped(Protocol):
    """A tensor of TensorFlow or JAX while a call is traced."""

    @property
    def shape(self) -> Sequence[int]:
        """Returns its whole shape."""
        ...

    @property
    def dtype(self) -> object:
        """Returns its type, TensorFlow's or NumPy's."""
        ...


class Outputs:
    """The layers' outputs in the model's call that was traced last.

    Attributes:
      found: one entry per tensor, in the order of the calls.
    """

    def __init__(self, paths: Mapping[int, str], tensors: Callable[[object], Iterable[Shaped]]) -> None:
        """Creates a recorder without outputs.

        Args:
          paths: id of a layer -> canonical path; a layer without an entry is called by its name.
          tensors: returns the tensors in a structure of arguments or results.
        """
        self._paths = paths
        self._tensors = tensors

    def begin(self, inputs: Shaped | Mapping[str, Shaped]) -> None:
        """Forgets the previous call and begins a new one.

        Args:
          inputs: the model's argument.
        """
        self.found: list[LayerOutput] = []
        if isinstance(inputs, Mapping):
            named_inputs = {f"{INPUTS}/{name}": tensor for name, tensor in inputs.items()}
        else:
            named_inputs = {INPUTS: inputs}
        # id of a tensor -> canonical path of the layer that provides it.
        self._providers = keys_by_id(named_inputs)
        # References to all tensors that are known by id: the id of a deleted one could be given to another tensor.
        self._referenced: list[Shaped] = [*named_inputs.values()]

    def recorded(self, layer: Any, call: Callable[..., object]) -> Callable[..., object]:
        """Returns a layer's own `call`, which then records inputs and outputs."""

        def recorded_call(*args: object, **kwargs: object) -> object:
            outputs = call(*args, **kwargs)
            path = self._paths.get(id(layer), layer_path(layer.name))
            inputs = []
            for tensor in self._tensors((args, kwargs)):
                inputs.append(LayerInput(self._providers.get(id(tensor), ""), tuple(tensor.shape)))
            for tensor in self._tensors(outputs):
                # TensorFlow's types have a name; NumPy's print as one.
                dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
                output = LayerOutput(path, type(layer).__name__, tuple(tensor.shape), dtype, tuple(inputs))
                self.found.append(output)
                self._providers[id(tensor)] = path
                self._referenced.append(tensor)
            return outputs

        return recorded_call


def layer_path(name: str) -> str:
    """Returns a layer's canonical path: `block_0/mlp/up` for `block_0.mlp.up`.

    Keras 3 allows no slash in names.
    """
    return name.replace(".", "/")
