"""Activations and FLOPs of layers, estimated from shapes alone.

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.engine.base import INPUTS, LayerInput, LayerOutput
from runner.engine.mappings import shapes_of
from runner.layout import Placement, Spec, transformers
from runner.layout.axes import axes_of, axis_size, without_axes
from runner.layout.roles import ancestors
from runner.plan import units

# FLOPs of one multiplication and one addition.
_MULTIPLY_ADD = 2
# Matrix products per kernel in a training step: the output, the kernel's gradient and the input's gradient.
_WITH_INPUT_GRADIENT = 3
_WITHOUT_INPUT_GRADIENT = 2


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
    _ends: dict[str, dict[str, LayerOutput]] = field(default_factory=dict, init=False, repr=False, compare=False)

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
    def by_layer(self) -> dict[str, LayerOutput]:
        """First output by layer."""
        return {output.layer: output for output in reversed(self.outputs)}

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
        return _kernels(self.variables(layer))

    @functools.cached_property
    def inner_kernels(self) -> Mapping[str, list[Placement]]:
        """Kernels by each path above them, of layers whose own output is not known: attention's projections."""
        by_owner: dict[str, list[Placement]] = defaultdict(list)
        for layer, variables in self._variables_by_layer.items():
            if layer not in self.by_layer:
                kernels = _kernels(variables)
                for owner in ancestors(layer):
                    by_owner[owner] += kernels
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

    def fitting(self, shape: Sequence[int], spec: Sequence[str | None]) -> Spec:
        """Returns a spec without the axes that do not divide their dims."""
        entries: list[str | None] = []
        for dim, axis in zip(shape, spec, strict=True):
            if dim % axis_size(self.axes, axis) != 0:
                axis = None
            entries.append(axis)
        return tuple(entries)

    def followed(self, output: LayerOutput, ends: Callable[[LayerOutput], bool], question: str) -> LayerOutput:
        """Follows an output back through the first inputs of layers, to the first that `ends`, or whose input is not
        known.

        The end that is reached from a layer's first output is cached under `question`, a name for `ends`, so that
        following all outputs of a deep model takes as many steps as it has layers.
        """
        ends_by_layer = self._ends.setdefault(question, {})
        passed: dict[str, None] = {}
        while not ends(output):
            source = ""
            if output.inputs:
                source = output.inputs[0].layer
            if source in ends_by_layer:
                output = ends_by_layer[source]
                break
            if source not in self.by_layer:
                break
            if source in passed:
                # A layer that is called on its own output. Its end depends on the start, so nothing is cached.
                return output
            passed[source] = None
            output = self.by_layer[source]
        ends_by_layer.update(dict.fromkeys(passed, output))
        return output

    def has_trained_inputs(self, output: LayerOutput) -> bool:
        """Returns whether a layer's inputs depend on trained variables, so that it computes their gradient."""
        providers = {layer_input.layer for layer_input in output.inputs}
        if not providers or "" in providers:
            # Most likely the inputs of all layers but the first depend on trained variables.
            return output.layer != self._first_with_kernel
        return not providers.isdisjoint(self._trained_layers)

    @functools.cached_property
    def _first_with_kernel(self) -> str | None:
        for output in self.outputs:
            if self.kernels(output.layer):
                return output.layer
        return None

    @functools.cached_property
    def _trained_layers(self) -> set[str]:
        """Layers with trained variables, and those that depend on their outputs."""
        owners = set[str]()
        for path in self.trained:
            if path in self.placements:
                layer = path.rpartition("/")[0]
                owners.update((layer, *ancestors(layer)))
        readers: dict[str, list[str]] = {}
        for layer, output in self.by_layer.items():
            for layer_input in output.inputs:
                readers.setdefault(layer_input.layer, []).append(layer)
        trained = owners & self.by_layer.keys()
        stack = list(trained)
        while stack:
            new = set(readers.get(stack.pop(), ())) - trained
            trained |= new
            stack += new
        return trained


def _kernels(variables: Iterable[Placement]) -> list[Placement]:
    kernels = []
    for variable in variables:
        name = variable.path.rpartition("/")[2]
        if "kernel" in name and len(variable.shape) >= 2:
            kernels.append(variable)
    return kernels


def features(output: LayerOutput, kernel: Placement) -> int:
    """Returns how many of a kernel's last dims are dims of the output: two for (dim, heads, head dim), else one."""
    if len(kernel.shape) == 3 and len(output.shape) == 4 and "Conv" not in output.kind:
        return 2
    return 1


def output_dims(model: PlacedModel, output: LayerOutput, kernel: Placement) -> tuple[int, ...]:
    """Returns the dims of a kernel that are the last dims of the output, in this order.

    These are the last ones of (dim, heads, head dim), and the first and the last of (experts, in, out).
    """
    rank = len(kernel.shape)
    count = features(output, kernel)
    if count > 1 and kernel.path in model.experts:
        return (0, rank - 1)
    return tuple(range(rank - count, rank))


def gathered_input(model: PlacedModel, output: LayerOutput, kernel: Placement) -> tuple[str, int] | None:
    """Returns the axis over which a dense layer's input is gathered, and the numbers that a device gets; or None.

    The axis shards the columns of the layer's kernel, and those of the layer before it: the product needs whole rows.
    """
    if len(kernel.shape) != 2 or not output.inputs:
        return None
    shape = output.inputs[0].shape
    provider = model.by_layer.get(output.inputs[0].layer)
    if provider is None or provider.shape != shape or shape[-1:] != kernel.shape[:1]:
        return None
    *others, axis = output_spec(model, provider)
    if axis is None or axis != model.used_spec(kernel)[1] or model.axes[axis] == 1:
        return None
    return axis, math.prod(shape) // model.shards(others)


def input_of(model: PlacedModel, layer_input: LayerInput) -> Spec | None:
    """Returns the spec of the model's input that a layer reads; None: it reads something else."""
    if layer_input.layer == INPUTS:
        return next(iter(model.inputs.values()))
    prefix, _, name = layer_input.layer.partition("/")
    if prefix != INPUTS:
        return None
    return model.inputs.get(name)


def inner_spec(model: PlacedModel, output: LayerOutput) -> Spec | None:
    """Returns the spec of an output's dims between the first and the last, as of the input that it is computed from.

    It is None where no layers that keep the rank lead to an input, as for tokens that are computed from an image, or
    heads that are computed from tokens.
    """
    rank = len(output.shape)

    def ends(candidate: LayerOutput) -> bool:
        reads_input = bool(candidate.inputs) and input_of(model, candidate.inputs[0]) is not None
        return len(candidate.shape) != rank or reads_input

    source = model.followed(output, ends, f"of rank {rank}")
    if len(source.shape) != rank:
        return None
    spec = None
    if source.inputs:
        spec = input_of(model, source.inputs[0])
    if spec is not None and len(spec) == rank:
        return spec[1:-1]
    if spec is not None or "Dense" in source.kind or "Attention" in source.kind:
        return None
    # The engine does not know what the layer reads: assume an input of the same rank, if there is one.
    if rank > 2:
        for input_spec in model.inputs.values():
            if len(input_spec) == rank:
                return input_spec[1:-1]
    return None


def output_spec(model: PlacedModel, output: LayerOutput) -> Spec:
    """Returns the spec of a layer's output: the last dims are sharded as its kernel's, the others as its input's."""
    if not output.shape:
        # A number, such as a loss that a layer returns.
        return ()

    def ends(candidate: LayerOutput) -> bool:
        changes_shape = not candidate.inputs or candidate.inputs[0].shape != candidate.shape
        return bool(model.kernels(candidate.layer)) or changes_shape

    source = model.followed(output, ends, "split")
    spec: list[str | None] = [model.batch_axis, *[None] * (len(source.shape) - 1)]
    spec[1:-1] = inner_spec(model, source) or spec[1:-1]
    for kernel in model.kernels(source.layer):
        used = model.used_spec(kernel)
        own_spec = [used[dim] for dim in output_dims(model, source, kernel)]
        spec[-len(own_spec) :] = own_spec
    # Layers keep the dim of tokens, whether they split vectors into heads or join heads into vectors.
    if model.token_axis is not None and len(spec) > 2 and source.shape[1] == model.row_tokens:
        spec[1] = model.token_axis
    return model.fitting(source.shape, spec)


def has_examples(output: LayerOutput) -> bool:
    """Returns whether an output has the dim of its layer's input; a table that a layer passes on has not."""
    return not output.inputs or output.inputs[0].shape[:1] == output.shape[:1]


def output_bytes(model: PlacedModel, output: LayerOutput, width: int) -> int:
    """Returns the bytes of one device's part of a layer's output, of `width` bytes per number."""
    return math.prod(output.shape) * width // model.shards(output_spec(model, output))


def flops(model: PlacedModel, output: LayerOutput) -> int:
    """Returns a device's FLOPs in a layer for one call of the model in training.

    A product with a kernel takes two FLOPs per entry of the kernel and position of the output. It is counted for the
    output, for the kernel's gradient and, if it is needed, for the input's gradient. Attention is added. Activation
    functions, normalization and additions are left out. In a mixture, every expert computes every token, as KerasHub's
    do.
    """
    products = _WITHOUT_INPUT_GRADIENT
    if model.has_trained_inputs(output):
        products = _WITH_INPUT_GRADIENT
    total = products * _experts(model, output)
    if not has_examples(output):
        return total
    spec = output_spec(model, output)
    for kernel in model.kernels(output.layer):
        count = features(output, kernel)
        data_axes = model.data_axes & axes_of([spec[:-count]])
        positions = math.prod(output.shape[:-count]) // model.shards(data_axes)
        total += products * _product(model, kernel, positions)
    inner_kernels = model.inner_kernels[output.layer]
    for kernel in inner_kernels:
        total += products * _product(model, kernel, positions_of(model, output))
    return total + products * _tied(model, output) + _attention(model, output, inner_kernels)


def attention_flops(model: PlacedModel) -> int:
    """Returns a device's FLOPs in the two products of attention, of all layers, for one call in training."""
    return sum(_attention(model, output, model.inner_kernels[output.layer]) for output in model.outputs)


def head_flops(model: PlacedModel) -> int:
    """Returns a device's FLOPs in the layers that make logits, for one call in training."""
    total = 0
    for output in model.outputs:
        kernels = model.kernels(output.layer)
        makes_logits = any(kernel.path in model.of_vocabulary for kernel in kernels)
        if makes_logits or (not kernels and _tied(model, output)):
            total += flops(model, output)
    return total


def _product(model: PlacedModel, kernel: Placement, positions: int) -> int:
    """Returns a device's FLOPs for products of vectors with its part of a kernel."""
    return _MULTIPLY_ADD * math.prod(model.used_shape(kernel)) * positions


def _experts(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of one product of every token with each expert kernel."""
    others = model.kernels(output.layer)
    kernels = []
    for variable in model.variables(output.layer):
        # A layer that `kernels` knows has its products counted as those of any other layer.
        if variable.path in model.experts and variable not in others:
            kernels.append(variable)
    if not kernels or not output.inputs:
        return 0
    # The input is rows of tokens, or all tokens of a batch in one dim.
    tokens = math.prod(output.inputs[0].shape[:-1]) // model.shards([model.batch_axis, model.token_axis])
    return sum(_product(model, kernel, tokens) for kernel in kernels)


def _tied(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of one product with an embedding table, of a head that is tied to the embeddings.

    Either the layer turns vectors (batch, tokens, dim) into logits by its own table, (vocabulary, dim) or (dim,
    vocabulary); or it has no variables and takes the table of another layer as its second input.
    """
    ranks = [len(layer_input.shape) for layer_input in output.inputs]
    table = None
    if ranks == [3] and len(output.shape) == 3:
        table = _own_table(model, output)
    elif ranks == [3, 2] and not model.variables(output.layer) and len(output.shape) == 3:
        table = _table_of(model, output.inputs[1])
    if table is None:
        return 0
    return _product(model, table, positions_of(model, output))


def _own_table(model: PlacedModel, output: LayerOutput) -> Placement | None:
    """Returns a layer's own table that turns vectors into logits, if it has one."""
    sizes = {output.inputs[0].shape[-1], output.shape[-1]}
    tables = []
    for variable in model.variables(output.layer):
        name = variable.path.rpartition("/")[2]
        if "embeddings" in name and len(variable.shape) == 2 and set(variable.shape) == sizes:
            tables.append(variable)
    # If there are as many logits as dims, a table of positions has the shape of a head too.
    is_ambiguous = len(sizes) == 1 and "Reversible" not in output.kind
    if not tables or is_ambiguous:
        return None
    # Of two tables, the first looks tokens up and the second turns vectors back into logits.
    return tables[-1]


def _table_of(model: PlacedModel, layer_input: LayerInput) -> Placement | None:
    for variable in model.variables(layer_input.layer):
        if variable.shape == layer_input.shape:
            return variable
    return None


def positions_of(model: PlacedModel, output: LayerOutput) -> int:
    """Returns how many vectors of an output one device computes."""
    return math.prod(output.shape[:-1]) // model.shards(output_spec(model, output)[:-1])


def _attention(model: PlacedModel, output: LayerOutput, inner_kernels: Sequence[Placement]) -> int:
    """Returns the FLOPs of attention scores and their product with the values, of the forward pass and both gradients.

    The layer is one of three kinds: one that takes queries, keys and values (batch, tokens, heads, head dim), and
    perhaps documents (batch, tokens); a block that holds an attention, or a scanned stack of such, (depth, ...); or a
    stock attention layer whose projections are layers of their own.
    """
    shapes = []
    for layer_input in output.inputs:
        # Of two dims are the documents of a batch's tokens.
        if len(layer_input.shape) != 2:
            shapes.append(layer_input.shape)
    if not shapes:
        return 0
    takes_heads = list(map(len, shapes)) == [4, 4, 4]
    to_heads = _query_kernel(output.kind, inner_kernels)
    query_layer = model.by_layer.get(f"{output.layer}/query")
    depth = 1
    if takes_heads and inner_spec(model, output) is None:
        _, queries, heads, size = shapes[0]
        keys = shapes[1][1]
        devices = model.shards(output_spec(model, output))
    elif to_heads is not None:
        queries = shapes[0][1]
        keys = shapes[-1][1]
        heads, size = to_heads.shape[-2:]
        depth = math.prod(to_heads.shape[:-3])
        devices = model.shards(output_spec(model, output)[:2]) * model.shards(model.used_spec(to_heads))
    elif "Attention" in output.kind and query_layer is not None and len(query_layer.shape) == 4:
        key_layer = model.by_layer.get(f"{output.layer}/key", query_layer)
        _, queries, heads, size = query_layer.shape
        keys = key_layer.shape[1]
        devices = model.shards(output_spec(model, query_layer))
    else:
        return 0
    examples = output.shape[0]
    one_product = _MULTIPLY_ADD * examples * heads * queries * keys * size
    # Two products (scores, values), each once forward and twice backward.
    return depth * 2 * 3 * one_product // devices


def _query_kernel(kind: str, kernels: Sequence[Placement]) -> Placement | None:
    """Returns the kernel that makes queries, (..., dim, heads, head dim); None: the layer holds no attention."""
    first = None
    for kernel in kernels:
        if len(kernel.shape) < 3:
            continue
        if "query" in kernel.path:
            return kernel
        if first is None and "Attention" in kind:
            # One kernel may make queries, keys and values.
            first = kernel
    return first
