"""A model's variables and layers on a mesh: what each device has of them.

The sharding of a layer's output is assumed to follow these rules:

- The first dim is sharded as the examples are.
- The dims between the first and the last, such as an image's height and width, are sharded as those of the model input
  that the output is computed from, as long as the rank stays the same.
- The last dim is sharded as the last dim of the layer's kernel.
- Variables that an engine uses whole, such as a convolution's kernel on DTensor, are used whole on every device.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.engine.base import INPUTS, LayerOutput
from runner.engine.mappings import shapes_of
from runner.layout import Placement, Spec, transformers
from runner.layout.axes import axes_of, axis_size, without_axes
from runner.layout.roles import ancestors
from runner.plan import units

# Of the names of trained adapters (LoRA) beside a frozen kernel in Keras.
_ADAPTER = "lora_"


@dataclass(frozen=True)
class PlacedModel:
    """A model's variables and layers on a mesh, from which memory and FLOPs are estimated.

    Attributes:
      inputs: spec by name of the model's input, the examples' dim first.
      width: bytes per number of a variable where layers use it, by path.
      whole: paths of variables that operations need whole.
      experts: paths of a mixture's kernels, (experts, in, out), which are applied to every token. It has none that a
        scan stacks.
      row_tokens: tokens per row; None if rows have none.
      token_axis: axis that shards them; None if none does.
    """

    placements: Mapping[str, Placement]
    trained: Collection[str]
    outputs: Sequence[LayerOutput]
    axes: Mapping[str, int]
    inputs: Mapping[str, Spec]
    width: Mapping[str, int]
    whole: Collection[str] = ()
    experts: Collection[str] = ()
    row_tokens: int | None = None
    token_axis: str | None = None

    @functools.cached_property
    def data_axes(self) -> set[str]:
        """Axes that shard the inputs."""
        return axes_of(self.inputs.values())

    @functools.cached_property
    def batch_axis(self) -> str | None:
        """Axis that shards the examples, the same for every input."""
        for spec in self.inputs.values():
            if spec:
                return spec[0]
        return None

    @functools.cached_property
    def calls(self) -> list[LayerOutput]:
        """The main output of each call of a layer, in their order."""
        return [output for output in self.outputs if not output.is_extra]

    @functools.cached_property
    def by_layer(self) -> dict[str, LayerOutput]:
        """Main output of the first call, by layer."""
        first: dict[str, LayerOutput] = {}
        for output in self.calls:
            first.setdefault(output.layer, output)
        return first

    @functools.cached_property
    def differentiated(self) -> set[str]:
        """Paths of the variables that have a gradient: the trained ones, and what Keras adds trained adapters to."""
        found = set(self.trained)
        for path in self.trained:
            layer, _, name = path.rpartition("/")
            if name.startswith(_ADAPTER):
                found.update(variable.path for variable in self.variables(layer))
        return found

    @functools.cached_property
    def _variables_by_layer(self) -> dict[str, list[Placement]]:
        by_layer: dict[str, list[Placement]] = {}
        for path, placement in self.placements.items():
            by_layer.setdefault(path.rpartition("/")[0], []).append(placement)
        return by_layer

    # Every kept array is compared with what follows: a plan of hundreds of candidates reads it a million times.
    @functools.cached_property
    def activation_units(self) -> tuple[units.Units, ...]:
        """Units that activations count, such as heads, with the axes that shard them; axes of size 1 are left out."""
        of_one_device = [axis for axis, size in self.axes.items() if size == 1]
        used = []
        for placement in self.placements.values():
            used.append((placement, without_axes(self.used_spec(placement), of_one_device)))
        return units.read(used, self.structure.roles)

    @functools.cached_property
    def weight_shapes(self) -> dict[tuple[int, ...], int]:
        """Shape of a weight where layers use it -> number of its shards."""
        shapes = {}
        for placement in self.placements.values():
            shapes[placement.shape] = self.shards(self.used_spec(placement))
        return shapes

    @functools.cached_property
    def depth(self) -> int | None:
        """Number of layers of a scan; None if no variable is stacked."""
        for path in self.structure.stacked:
            return self.placements[path].shape[0]
        return None

    @functools.cached_property
    def structure(self) -> transformers.Structure:
        """What the variables are of a transformer."""
        return transformers.read(shapes_of(self.placements))

    @functools.cached_property
    def of_vocabulary(self) -> set[str]:
        """Paths of the tables and heads of vocabularies."""
        roles = self.structure.roles
        return {path for path, role in roles.items() if role.noun == transformers.VOCABULARY}

    def variables(self, layer: str) -> list[Placement]:
        """Returns the placements of a layer's own variables."""
        return self._variables_by_layer.get(layer, [])

    def kernels(self, layer: str) -> list[Placement]:
        """Returns the placements of the variables that multiply the layer's inputs."""
        kernels = []
        for variable in self.variables(layer):
            name = variable.path.rpartition("/")[2]
            # The product of Keras's adapters is added to a kernel.
            if "kernel" in name and len(variable.shape) >= 2 and not name.startswith(_ADAPTER):
                kernels.append(variable)
        return kernels

    def inner_kernels(self, layer: str) -> list[Placement]:
        """Returns the kernels of layers inside a layer whose own output is not known: attention's projections."""
        return self._inner_kernels.get(layer, [])

    @functools.cached_property
    def _inner_kernels(self) -> dict[str, list[Placement]]:
        by_owner: dict[str, list[Placement]] = defaultdict(list)
        for layer in self._variables_by_layer:
            if layer not in self.by_layer:
                for owner in ancestors(layer):
                    by_owner[owner] += self.kernels(layer)
        return by_owner

    def used_spec(self, variable: Placement) -> Spec:
        """Returns a variable's spec where layers use it: gathered over data axes and sharded over the others."""
        if variable.path in self.whole:
            return (None,) * len(variable.spec)
        return without_axes(variable.spec, self.data_axes)

    def used_shape(self, variable: Placement) -> tuple[int, ...]:
        """Returns the shape of one device's part of a variable where layers use it."""
        return Placement(variable.path, variable.shape, self.used_spec(variable), None).shard_shape(self.axes)

    def shards(self, axes: Iterable[str | None]) -> int:
        """Returns the number of shards that these axes make."""
        return math.prod(axis_size(self.axes, axis) for axis in axes)

    def joined(self, axes: Iterable[str | None]) -> str:
        """Returns axes in the mesh's order, joined by `+`, without those of one device."""
        chosen = set(axes)
        return "+".join(axis for axis, size in self.axes.items() if axis in chosen and size > 1)

    def has_trained_inputs(self, output: LayerOutput) -> bool:
        """Returns whether a layer's inputs depend on trained variables, so that it computes their gradient."""
        providers = {layer_input.layer for layer_input in output.inputs}
        if not providers or "" in providers:
            # Most likely what is computed between layers, such as a sum, depends on all layers before it.
            return output.layer in self._after_trained
        return not providers.isdisjoint(self.trained_layers)

    @functools.cached_property
    def _after_trained(self) -> set[str]:
        """Layers that are called after one with trained variables."""
        found = set[str]()
        is_after = False
        for layer in self.by_layer:
            if is_after:
                found.add(layer)
            is_after = is_after or layer in self.trained_layers
        return found

    @functools.cached_property
    def trained_layers(self) -> set[str]:
        """Layers with trained variables, and those that depend on their outputs."""
        owners = set[str]()
        for path in self.trained:
            if path in self.placements:
                layer = path.rpartition("/")[0]
                owners.update((layer, *ancestors(layer)))
        trained = set[str]()
        # A layer is called after those that provide its inputs.
        for layer, output in self.by_layer.items():
            providers = {layer_input.layer for layer_input in output.inputs}
            # As `has_trained_inputs` assumes.
            is_after_trained = "" in providers and bool(trained)
            if layer in owners or is_after_trained or not providers.isdisjoint(trained):
                trained.add(layer)
        return trained

    def provider(self, output: LayerOutput) -> LayerOutput | None:
        """Returns the first output of the layer that provides an output's first input; None if it is not known."""
        if not output.inputs:
            return None
        return self.by_layer.get(output.inputs[0].layer)

    def output_spec(self, output: LayerOutput) -> Spec:
        """Returns the spec of an output: its last dims are sharded as its kernel's, the others as its input's."""
        return self._output_spec(output, self._output_specs)

    @functools.cached_property
    def _output_specs(self) -> dict[str, Spec]:
        """Spec of the first output, by layer."""
        specs: dict[str, Spec] = {}
        # In the order of calls, so that the spec of a layer's input is known.
        for layer, output in self.by_layer.items():
            specs[layer] = self._output_spec(output, specs)
        return specs

    def _output_spec(self, output: LayerOutput, known: Mapping[str, Spec]) -> Spec:
        """Returns the spec of a layer's output, given those of the layers before it."""
        if not output.shape:
            # A number, such as a loss that a layer returns.
            return ()
        kernels = self.kernels(output.layer)
        provider = self.provider(output)
        if provider is not None and not kernels and output.inputs[0].shape == output.shape:
            return known[provider.layer]
        spec: list[str | None] = [self.batch_axis, *[None] * (len(output.shape) - 1)]
        spec[1:-1] = self.inner_spec(output) or spec[1:-1]
        for kernel in kernels:
            used = self.used_spec(kernel)
            own_spec = [used[dim] for dim in self.output_dims(output, kernel)]
            spec[-len(own_spec) :] = own_spec
        # Layers keep the dim of tokens, whether they split vectors into heads or join heads into vectors.
        if self.token_axis is not None and len(spec) > 2 and output.shape[1] == self.row_tokens:
            spec[1] = self.token_axis
        return self._without_misfits(output.shape, spec)

    def output_dims(self, output: LayerOutput, kernel: Placement) -> tuple[int, ...]:
        """Returns the dims of a kernel that are the last dims of the output, in this order.

        These are the last ones of (dim, heads, head dim), the first and the last of (experts, in, out), else the last.
        """
        makes_two = len(kernel.shape) == 3 and len(output.shape) == 4 and "Conv" not in output.kind
        if not makes_two:
            return (len(kernel.shape) - 1,)
        if kernel.path in self.experts:
            return (0, 2)
        return (1, 2)

    def _without_misfits(self, shape: Sequence[int], spec: Sequence[str | None]) -> Spec:
        """Returns a spec without the axes that do not divide their dims."""
        entries: list[str | None] = []
        for dim, axis in zip(shape, spec, strict=True):
            if dim % axis_size(self.axes, axis) != 0:
                axis = None
            entries.append(axis)
        return tuple(entries)

    def inner_spec(self, output: LayerOutput) -> Spec | None:
        """Returns the spec of an output's dims between the first and the last: that of the model input it comes from.

        It is None where no layers that keep the rank lead to an input, as for tokens that are computed from an image,
        or heads that are computed from tokens.
        """
        return self._inner_spec(output, self._inner_specs)

    @functools.cached_property
    def _inner_specs(self) -> dict[str, Spec | None]:
        specs: dict[str, Spec | None] = {}
        for layer, output in self.by_layer.items():
            specs[layer] = self._inner_spec(output, specs)
        return specs

    def _inner_spec(self, output: LayerOutput, known: Mapping[str, Spec | None]) -> Spec | None:
        rank = len(output.shape)
        read = self._input_spec(output)
        if read is not None:
            if len(read) != rank:
                return None
            return read[1:-1]
        provider = self.provider(output)
        if provider is not None:
            if len(provider.shape) != rank:
                return None
            return known[provider.layer]
        if rank <= 2 or "Dense" in output.kind or "Attention" in output.kind:
            return None
        # The engine does not know what the layer reads: assume an input of the same rank, if there is one.
        for spec in self.inputs.values():
            if len(spec) == rank:
                return spec[1:-1]
        return None

    def _input_spec(self, output: LayerOutput) -> Spec | None:
        """Returns the spec of the model's input that a layer reads first; None: it reads something else."""
        if not output.inputs:
            return None
        prefix, _, name = output.inputs[0].layer.partition("/")
        if prefix != INPUTS:
            return None
        if not name:
            return next(iter(self.inputs.values()))
        return self.inputs.get(name)

    def output_bytes(self, output: LayerOutput, width: int) -> int:
        """Returns the bytes of one device's part of a layer's output, of `width` bytes per number."""
        return math.prod(output.shape) * width // self.shards(self.output_spec(output))

    def positions(self, output: LayerOutput) -> int:
        """Returns how many vectors of an output one device computes."""
        return math.prod(output.shape[:-1]) // self.shards(self.output_spec(output)[:-1])
