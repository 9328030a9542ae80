"""Records the inputs and outputs of a model's layers while a call is traced, for the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from runner.engine.base import INPUTS, LayerInput, LayerOutput
from runner.engine.mappings import keys_by_id


class Outputs:
    """The layers' outputs in the model's call that was traced last, one entry in `found` per tensor, in order."""

    def __init__(self, paths: Mapping[int, str], tensors: Callable[[object], Iterable[Any]]) -> None:
        self._paths = paths
        self._tensors = tensors

    def begin(self, inputs: Any) -> None:
        """Forgets the previous call and begins a new one with the model's argument."""
        self.found: list[LayerOutput] = []
        if isinstance(inputs, Mapping):
            named_inputs = {f"{INPUTS}/{name}": tensor for name, tensor in inputs.items()}
        else:
            named_inputs = {INPUTS: inputs}
        # id of a tensor -> canonical path of the layer that provides it.
        self._providers = keys_by_id(named_inputs)
        # References to all tensors that are known by id: the id of a deleted one could be given to another tensor.
        self._referenced: list[Any] = [*named_inputs.values()]

    def recorded(self, layer: Any, call: Callable[..., object]) -> Callable[..., object]:
        """Returns a layer's own `call`, which then records inputs and outputs."""

        def recorded_call(*args: object, **kwargs: object) -> object:
            outputs = call(*args, **kwargs)
            path = self._paths.get(id(layer), layer_path(layer.name))
            inputs = []
            for tensor in self._tensors((args, kwargs)):
                inputs.append(LayerInput(self._providers.get(id(tensor), ""), tuple(tensor.shape)))
            made = []
            for tensor in self._tensors(outputs):
                # TensorFlow's types have a name; NumPy's print as one.
                dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
                made.append(LayerOutput(path, type(layer).__name__, tuple(tensor.shape), dtype, tuple(inputs)))
                self._providers[id(tensor)] = path
                self._referenced.append(tensor)
            of_examples = [output for output in made if output.has_examples] or made
            self.found += [replace(output, is_extra=output is not of_examples[0]) for output in made]
            return outputs

        return recorded_call


def layer_path(name: str) -> str:
    """Returns a layer's canonical path: `block_0/mlp/up` for `block_0.mlp.up`, as Keras 3 allows no slash."""
    return name.replace(".", "/")
