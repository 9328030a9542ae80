"""What a layer holds and computes, reckoned from shapes alone. Imports no TensorFlow.

A layer's output is split over the batch; over the dims between the first and the last, as an image's height and width,
where the model's input is that it is made of, as long as the rank stays the same; and by columns where its kernel is.
What an engine needs whole, as a convolution on DTensor its kernel and what it is applied to, each device computes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.engine.base import INPUTS, LayerInput, LayerOutput
from runner.layout import Placement, Spec
from runner.layout.roles import ancestors

_PRODUCT = 2  # a multiplication and an addition


@dataclass(frozen=True)
class PlacedModel:
    """A model's variables and layers as they lie on a mesh: what the estimates are made of.

    Attributes:
      placements: canonical path to placement.
      trained: paths of trained variables.
      outputs: of the layers, in the model's order.
      axes: mesh axis to size.
      inputs: name of what the model takes -> its spec, the examples' dim first.
      width: bytes of one number of a variable in use, by path.
      whole: paths of variables that operations need whole; a kernel of these is applied to whole inputs.
      experts: paths of a mixture's kernels, (experts, in, out), which are applied to every token.
      tokens: how many tokens a row has, and the axis that splits them; None: no axis does.
    """

    placements: Mapping[str, Placement]
    trained: Collection[str]
    outputs: Sequence[LayerOutput]
    axes: Mapping[str, int]
    inputs: Mapping[str, Spec]
    width: Mapping[str, int]
    whole: Collection[str] = ()
    experts: Collection[str] = ()
    tokens: tuple[int, str] | None = None
    _leads: dict[str, dict[str, LayerOutput]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @functools.cached_property
    def data_axes(self) -> set[str]:
        """Axes that split the inputs."""
        return {axis for spec in self.inputs.values() for axis in spec if axis}

    @functools.cached_property
    def batch_axis(self) -> str | None:
        """Axis that splits the examples, of every input alike."""
        return next((spec[0] for spec in self.inputs.values() if spec), None)

    @functools.cached_property
    def by_layer(self) -> dict[str, LayerOutput]:
        """Layer to its first output."""
        return {output.layer: output for output in reversed(self.outputs)}

    @functools.cached_property
    def _of_layer(self) -> dict[str, list[Placement]]:
        found: dict[str, list[Placement]] = {}
        for path, held in self.placements.items():
            found.setdefault(path.rpartition("/")[0], []).append(held)
        return found

    def variables(self, layer: str) -> list[Placement]:
        """Returns the placements of a layer's own variables."""
        return self._of_layer.get(layer, [])

    def kernels(self, layer: str) -> list[Placement]:
        """Returns those that multiply the layer's inputs."""
        return _kernels(self.variables(layer))

    @functools.cached_property
    def _inside(self) -> dict[str, list[Placement]]:
        """Path to the kernels below it whose own layers have no known output."""
        found: dict[str, list[Placement]] = {}
        for name, held in self._of_layer.items():
            if name not in self.by_layer:
                kernels = _kernels(held)
                for owner in ancestors(name):
                    found.setdefault(owner, []).extend(kernels)
        return found

    def inner_kernels(self, layer: str) -> list[Placement]:
        """Returns those of the layers inside a layer that is known as one, as a stock attention's projections."""
        return self._inside.get(layer, [])

    def used_spec(self, held: Placement) -> Spec:
        """Returns how a variable is split where layers use it: whole over data axes, in parts over others."""
        return tuple(None if axis in self.data_axes or held.path in self.whole else axis for axis in held.spec)

    def used_shape(self, held: Placement) -> tuple[int, ...]:
        """Returns a device's shape of a variable as layers use it."""
        return Placement(held.path, held.shape, self.used_spec(held), None).shard_shape(self.axes)

    def shards(self, axes: Iterable[str | None]) -> int:
        """Returns into how many parts these axes cut."""
        return math.prod(self.axes[axis] for axis in axes if axis)

    def fitting(self, shape: Sequence[int], spec: Sequence[str | None]) -> Spec:
        """Returns a spec with null for each axis that does not divide its dim."""
        return tuple(a if a and dim % self.axes[a] == 0 else None for dim, a in zip(shape, spec, strict=True))

    def followed(self, output: LayerOutput, ends: Callable[[LayerOutput], bool], question: str) -> LayerOutput:
        """Follows an output to what its layer takes first, what that is made of, and so on.

        Args:
          output: where to begin.
          ends: whether a layer's output is the last to be followed.
          question: a name for `ends`. Where a layer's first output leads is remembered under it, so that following
            all outputs of a deep model takes as many steps as it has layers.

        Returns:
          The first that ends, or the last of which it is known what it is made of.
        """
        known = self._leads.setdefault(question, {})
        passed: dict[str, None] = {}
        while not ends(output):
            before = output.inputs[0].layer if output.inputs else ""
            if before in known:
                output = known[before]
                break
            if before not in self.by_layer:
                break
            if before in passed:
                # A layer that is called again on what it gave: where that ends depends on where one begins.
                return output
            passed[before] = None
            output = self.by_layer[before]
        known.update(dict.fromkeys(passed, output))
        return output

    def is_trained_before(self, output: LayerOutput) -> bool:
        """Tells whether a layer's inputs depend on trained variables, so that it computes their gradient."""
        if not output.inputs or any(not each.layer for each in output.inputs):  # not known: all but the first layer
            return output.layer != self._first_kernel
        return any(each.layer in self._train for each in output.inputs)

    @functools.cached_property
    def _first_kernel(self) -> str | None:
        """The first layer that has a kernel."""
        return next((each.layer for each in self.outputs if self.kernels(each.layer)), None)

    @functools.cached_property
    def _train(self) -> set[str]:
        """Layers that have trained variables, or that are made of what such layers give."""
        holders = set[str]()
        for path in self.trained:
            if path in self.placements:
                layer = path.rpartition("/")[0]
                holders.update((layer, *ancestors(layer)))
        readers: dict[str, list[str]] = {}
        for name, output in self.by_layer.items():
            for taken in output.inputs:
                readers.setdefault(taken.layer, []).append(name)
        found = holders & self.by_layer.keys()
        stack = list(found)
        while stack:
            new = set(readers.get(stack.pop(), ())) - found
            found |= new
            stack += new
        return found


def _kernels(variables: Iterable[Placement]) -> list[Placement]:
    named = [held for held in variables if "kernel" in held.path.rpartition("/")[2]]
    return [held for held in named if len(held.shape) >= 2]


def features(output: LayerOutput, kernel: Placement) -> int:
    """Returns how many of a kernel's last dims are dims of the output: two for (dim, heads, head dim), else one."""
    return 2 if len(kernel.shape) == 3 and len(output.shape) == 4 and "Conv" not in output.kind else 1


def input_of(model: PlacedModel, taken: LayerInput) -> Spec | None:
    """Returns the spec of the model's input that a layer takes; None where it takes something else."""
    if taken.layer == INPUTS:
        return next(iter(model.inputs.values()))
    prefix, _, name = taken.layer.partition("/")
    return model.inputs.get(name) if prefix == INPUTS else None


def inner_spec(model: PlacedModel, output: LayerOutput) -> Spec | None:
    """Returns how the dims of an output between the first and the last are split.

    Args:
      model: what the estimates are made of.
      output: of a layer.

    Returns:
      The entries of the model's input that it is made of by layers that keep the rank; None where there is none such,
      as of tokens that are made of an image, or of heads that are made of tokens.
    """
    rank = len(output.shape)

    def ends(made: LayerOutput) -> bool:
        of_input = bool(made.inputs) and input_of(model, made.inputs[0]) is not None
        return len(made.shape) != rank or of_input

    made = model.followed(output, ends, f"of rank {rank}")
    if len(made.shape) != rank:
        return None
    spec = input_of(model, made.inputs[0]) if made.inputs else None
    if spec is not None:
        return spec[1:-1] if len(spec) == rank else None
    if "Dense" in made.kind or "Attention" in made.kind:
        return None
    # The engine does not tell what the layer takes: an input of the same rank, where there is one.
    return next((spec[1:-1] for spec in model.inputs.values() if 2 < rank == len(spec)), None)


def output_spec(model: PlacedModel, output: LayerOutput) -> Spec:
    """Returns how a layer's output is split: columns as its kernel's, all else as its input's."""

    def ends(made: LayerOutput) -> bool:
        return bool(model.kernels(made.layer)) or not made.inputs or made.inputs[0].shape != made.shape

    made = model.followed(output, ends, "split")
    spec: list[str | None] = [model.batch_axis, *[None] * (len(made.shape) - 1)]
    spec[1:-1] = inner_spec(model, made) or spec[1:-1]
    for kernel in model.kernels(made.layer):
        count = features(made, kernel)
        spec[-count:] = model.used_spec(kernel)[-count:]
    # Layers keep the dim of tokens, whatever they make of the others: of vectors heads, and vectors of these.
    if model.tokens is not None and len(spec) > 2 and made.shape[1] == model.tokens[0]:
        spec[1] = model.tokens[1]
    return model.fitting(made.shape, spec)


def output_bytes(model: PlacedModel, output: LayerOutput, width: int) -> int:
    """Returns what one device holds of a layer's output, at `width` bytes a number."""
    return math.prod(output.shape) * width // model.shards(output_spec(model, output))


def flops(model: PlacedModel, output: LayerOutput) -> int:
    """Returns a device's operations in a layer for one call of the model in training.

    Two an entry of a kernel and a position of the output (a multiplication and an addition), for the output, for the
    kernel's gradient and, where it is needed, for the input's; and those of attention. Activations, normalization and
    additions are left out. Of a mixture every expert computes every token, as KerasHub's do.
    """
    products = 3 if model.is_trained_before(output) else 2
    total = products * _experts(model, output)
    if output.inputs and output.inputs[0].shape[:1] != output.shape[:1]:
        return total  # not by examples: a table that the layer hands on
    for kernel in model.kernels(output.layer):
        count = features(output, kernel)
        split = output_spec(model, output)[:1] if kernel.path in model.whole else output_spec(model, output)[:-count]
        positions = math.prod(output.shape[:-count]) // model.shards(axis for axis in split if axis in model.data_axes)
        total += products * _PRODUCT * math.prod(model.used_shape(kernel)) * positions
    inner = model.inner_kernels(output.layer)
    tokens = math.prod(output.shape[:-1]) // model.shards(output_spec(model, output)[:-1])
    total += sum(products * _PRODUCT * math.prod(model.used_shape(kernel)) * tokens for kernel in inner)
    return total + products * _tied(model, output) + _attention(model, output, inner)


def _experts(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the operations of one product of every token with each of a layer's kernels of experts."""
    kernels = [held for held in model.variables(output.layer) if held.path in model.experts]
    if not kernels or not output.inputs:
        return 0
    # Rows of tokens, or all tokens of a batch in one dim.
    tokens = math.prod(output.inputs[0].shape[:-1]) // model.shards([model.batch_axis, (model.tokens or (0, None))[1]])
    return sum(_PRODUCT * math.prod(model.used_shape(kernel)) * tokens for kernel in kernels)


def _tied(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the operations of one product with a table, as of a head tied to embeddings.

    Of a layer that takes tokens (batch, tokens, dim) and gives logits by its own table (vocabulary, dim) or (dim,
    vocabulary); or of one without variables that takes the table of another layer too.
    """
    if len(output.inputs) == 1 and len(output.inputs[0].shape) == len(output.shape) == 3:
        sizes = {output.inputs[0].shape[-1], output.shape[-1]}
        tables = (held for held in model.variables(output.layer) if "embeddings" in held.path.rpartition("/")[2])
        fitting = [held for held in tables if len(held.shape) == 2 and set(held.shape) == sizes]
        # As many logits as dims are a head's too, but a table of positions may have that shape as well.
        if not fitting or (len(sizes) == 1 and "Reversible" not in output.kind):
            return 0
        # Of two, as of one to look up and one to go back by, the second.
        return _PRODUCT * math.prod(model.used_shape(fitting[-1])) * _positions(model, output)
    if [len(taken.shape) for taken in output.inputs] != [3, 2] or model.variables(output.layer):
        return 0
    x, table = output.inputs
    held = next((each for each in model.variables(table.layer) if each.shape == table.shape), None)
    if held is None or len(output.shape) != len(x.shape):
        return 0
    return _PRODUCT * math.prod(model.used_shape(held)) * _positions(model, output)


def _positions(model: PlacedModel, output: LayerOutput) -> int:
    """Returns how many vectors of an output one device computes."""
    return math.prod(output.shape[:-1]) // model.shards(output_spec(model, output)[:-1])


def _attention(model: PlacedModel, output: LayerOutput, inner: Sequence[Placement]) -> int:
    """Returns the operations of scores and of their product with the values, forward and both gradients.

    Of a layer that takes queries, keys and values (batch, tokens, heads, head dim), and perhaps documents (batch,
    tokens); of a stock attention layer, whose projections are known as layers of their own or not; of a block that
    holds an attention, or a stack of such, (depth, ...), scanned.
    """
    shapes = [taken.shape for taken in output.inputs if len(taken.shape) != 2]
    depth = 1
    if len(shapes) == 3 and {len(shape) for shape in shapes} == {4} and inner_spec(model, output) is None:
        (_, queries, heads, size), keys, devices = shapes[0], shapes[1][1], model.shards(output_spec(model, output))
    elif shapes and (held := _to_heads(output.kind, inner)):
        queries = shapes[0][1]
        keys = shapes[-1][1]
        heads, size = held.shape[-2:]
        depth = math.prod(held.shape[:-3])
        devices = model.shards(output_spec(model, output)[:2]) * model.shards(model.used_spec(held))
    elif shapes and "Attention" in output.kind and (made := model.by_layer.get(f"{output.layer}/query")):
        if len(made.shape) != 4:
            return 0
        key = model.by_layer.get(f"{output.layer}/key", made)
        (_, queries, heads, size), keys, devices = made.shape, key.shape[1], model.shards(output_spec(model, made))
    else:
        return 0
    return depth * 2 * 3 * _PRODUCT * output.shape[0] * heads * queries * keys * size // devices


def _to_heads(kind: str, kernels: Sequence[Placement]) -> Placement | None:
    """Returns the kernel of a layer's attention that makes queries, (..., dim, heads, head dim); None: it has none."""
    known = [held for held in kernels if len(held.shape) >= 3]
    named = next((held for held in known if "query" in held.path), None)
    return named or (known[0] if "Attention" in kind and known else None)
