"""FLOPs of one device in layers, estimated from shapes alone, for one call of the model in training.

Activation functions, normalization and additions are left out. A recurrent layer that returns its last output alone
counts as one step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner.engine.base import LayerOutput
from runner.layout import Placement
from runner.layout.axes import axes_of
from runner.plan.placed_model import PlacedModel

# FLOPs of one multiplication and one addition.
_MULTIPLY_ADD = 2


def layer_flops(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs in a layer's call, which count for its main output.

    A product with a kernel takes two FLOPs per entry of the kernel and position of the output. It is counted for the
    output, for the gradient of a trained kernel and, if it is needed, for the input's gradient. Attention is added. In
    a mixture, every expert computes every token, as KerasHub's do.
    """
    if output.is_extra:
        return 0
    flops = _experts(model, output)
    if output.has_examples:
        flops += _kernels(model, output) + _tied(model, output)
    return flops + _attention(model, output)


def attention_flops(model: PlacedModel) -> int:
    """Returns the FLOPs in the two products of attention, of all layers."""
    return sum(_attention(model, output) for output in model.calls)


def head_flops(model: PlacedModel) -> int:
    """Returns the FLOPs in the layers that make logits."""
    total = 0
    for output in model.calls:
        kernels = model.kernels(output.layer)
        makes_logits = any(kernel.path in model.of_vocabulary for kernel in kernels)
        if makes_logits or (not kernels and _tied(model, output)):
            total += layer_flops(model, output)
    return total


def _products(model: PlacedModel, output: LayerOutput, kernel: Placement, positions: int) -> int:
    """Returns the FLOPs for the product of vectors with one device's part of a kernel, and for its gradients."""
    products = 1
    if kernel.path in model.differentiated:
        products += 1
    if model.has_trained_inputs(output):
        products += 1
    return products * _MULTIPLY_ADD * math.prod(model.used_shape(kernel)) * positions


def _kernels(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of the products with each of a layer's kernels, and with those inside it."""
    total = 0
    for kernel in model.kernels(output.layer):
        count = len(model.output_dims(output, kernel))
        # Other axes that shard positions shard the kernel too, whose part is counted.
        data_axes = model.data_axes & axes_of([model.output_spec(output)[:-count]])
        shape = output.shape
        if "Transpose" in output.kind and output.inputs:
            # A transposed convolution applies its kernel at each position of its input.
            shape = output.inputs[0].shape
        positions = math.prod(shape[:-count]) // model.shards(data_axes)
        total += _products(model, output, kernel, positions)
    for kernel in model.inner_kernels(output.layer):
        total += _products(model, output, kernel, model.positions(output))
    return total


def _experts(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of the products of every token with each expert kernel that `_kernels` leaves out."""
    if not output.inputs:
        return 0
    # The input is rows of tokens, or all tokens of a batch in one dim.
    tokens = math.prod(output.inputs[0].shape[:-1]) // model.shards([model.batch_axis, model.token_axis])
    kernels = model.kernels(output.layer)
    total = 0
    for variable in model.variables(output.layer):
        if variable.path in model.experts and variable not in kernels:
            total += _products(model, output, variable, tokens)
    return total


def _tied(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of the products with an embedding table, of a head that is tied to the embeddings.

    Either the layer turns vectors (batch, tokens, dim) into logits by its own table, (vocabulary, dim) or (dim,
    vocabulary); or it has no variables and takes the table of another layer as its second input.
    """
    ranks = [len(layer_input.shape) for layer_input in output.inputs]
    table = None
    if ranks == [3] and len(output.shape) == 3:
        table = _own_table(model, output)
    elif ranks == [3, 2] and not model.variables(output.layer) and len(output.shape) == 3:
        _, passed = output.inputs
        table = next((variable for variable in model.variables(passed.layer) if variable.shape == passed.shape), None)
    if table is None:
        return 0
    return _products(model, output, table, model.positions(output))


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


def _attention(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of attention scores and their product with the values, and of the gradients of both."""
    forward = _attention_forward(model, output)
    if output.layer in model.trained_layers or model.has_trained_inputs(output):
        return 3 * forward
    return forward


def _attention_forward(model: PlacedModel, output: LayerOutput) -> int:
    """Returns the FLOPs of attention's two products in the forward pass.

    The layer is one of three kinds: one that takes queries, keys and values (batch, tokens, heads, head dim), and
    perhaps documents (batch, tokens); a block that holds an attention, or a scanned stack of such, (depth, ...); or a
    stock attention layer whose projections are layers of their own.
    """
    if output.is_extra or not output.has_examples:
        return 0
    shapes = []
    for layer_input in output.inputs:
        # Of two dims are the documents of a batch's tokens.
        if len(layer_input.shape) != 2:
            shapes.append(layer_input.shape)
    if not shapes:
        return 0
    examples = output.shape[0]
    takes_heads = list(map(len, shapes)) == [4, 4, 4]
    if takes_heads and model.inner_spec(output) is None:
        queries, keys, _ = shapes
        devices = model.shards(model.output_spec(output))
        return _attention_products(examples, queries[1:], keys[1]) // devices
    to_heads = _query_kernel(output.kind, model.inner_kernels(output.layer))
    if to_heads is not None:
        depth = math.prod(to_heads.shape[:-3])
        queries = (shapes[0][1], *to_heads.shape[-2:])
        devices = model.shards(model.output_spec(output)[:2]) * model.shards(model.used_spec(to_heads))
        return depth * _attention_products(examples, queries, shapes[-1][1]) // devices
    query_layer = model.by_layer.get(f"{output.layer}/query")
    if "Attention" in output.kind and query_layer is not None and len(query_layer.shape) == 4:
        key_layer = model.by_layer.get(f"{output.layer}/key", query_layer)
        devices = model.shards(model.output_spec(query_layer))
        return _attention_products(examples, query_layer.shape[1:], key_layer.shape[1]) // devices
    return 0


def _attention_products(examples: int, queries: Sequence[int], keys: int) -> int:
    """Returns the FLOPs of the two products of attention.

    Args:
      queries: tokens, heads and head dim.
      keys: number of tokens.
    """
    one_product = _MULTIPLY_ADD * examples * math.prod(queries) * keys
    return 2 * one_product


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
