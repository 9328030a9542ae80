"""Memory of one device by kind, from shapes and shardings alone.

State is exact. What a step adds to it is estimated: arrays that the forward pass keeps for the backward pass, and the
arrays that are in memory beside them at the step's peak.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from runner.engine.base import VariableInfo
from runner.layout import Placement
from runner.plan.base import MemoryPart
from runner.plan.placed_model import PlacedModel

# Kinds of arrays, in the order of the table.
WEIGHTS = "weights"
OPTIMIZER = "optimizer state"
SUMS = "gradient sums"
GRADIENTS = "gradients"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
# What is in memory from step to step, and in the arguments of the step's program.
STATE = (WEIGHTS, OPTIMIZER, SUMS)
# Bytes per number of a sum of gradients.
_FLOAT32 = 4
# A block's values and their gradients are in memory together while its backward pass runs.
_VALUES_AND_GRADIENTS = 2
# Where attention is not fused, a block's scores are in memory as weights of the values and as gradients: on TPUs once
# each (12.0 GiB of 12.0 by libtpu 0.0.42 for one row of 8,192 tokens and 32 heads), elsewhere twice (44 GiB of 48 by
# XLA for two rows on an H100).
_SCORES = {"tpu": 1}
_SCORES_ELSEWHERE = 2
# The gathered weights of the block at work and of the next one, which are gathered meanwhile.
_GATHERED_BLOCKS = 2

Saved = Sequence[tuple[tuple[int, ...], str]]


def parts(
    model: PlacedModel,
    variables: Mapping[str, VariableInfo],
    saved: Saved,
    *,
    examples: int,
    compute_width: int,
    accumulates: bool,
    scores: Sequence[Saved] = (),
    device: str = "",
) -> tuple[MemoryPart, ...]:
    """Returns one device's memory at the peak of a step, by kind: the state, then gradients, activations, temporaries.

    Args:
      variables: the state, with the optimizer's.
      saved: shape and dtype of each whole array that the forward pass keeps for the backward pass.
      examples: of a microbatch.
      compute_width: bytes per number that layers compute in.
      scores: shape and dtype of the whole scores of attention that is not fused, by block.
    """
    weights = 0
    optimizer = 0
    for path, info in variables.items():
        if path in model.placements:
            weights += info.bytes_per_device
        else:
            optimizer += info.bytes_per_device
    gradients = 0
    sums = 0
    for path in model.trained:
        stored = math.prod(model.placements[path].shard_shape(model.axes))
        # FSDP never holds a whole gradient at the peak: each is reduced and scattered when it is complete.
        gradients += stored * model.width[path]
        sums += stored * _FLOAT32
    state = [MemoryPart(WEIGHTS, weights, "counted"), MemoryPart(OPTIMIZER, optimizer, "counted")]
    if accumulates:
        # Engines name the sums in none of their variables. Beside them there is the gradient of one block.
        state.append(MemoryPart(SUMS, sums, "counted"))
        gradients //= _block_count(model)
    repeated = _repeated_scores(model, saved, scores, examples, compute_width) * _SCORES.get(device, _SCORES_ELSEWHERE)
    moments = _moments(model, saved, gradients, examples=examples, compute_width=compute_width, scores=repeated)
    return (*state, *max(moments, key=lambda moment: sum(part.bytes for part in moment)))


def _moments(
    model: PlacedModel, saved: Saved, gradients: int, *, examples: int, compute_width: int, scores: int = 0
) -> list[tuple[MemoryPart, ...]]:
    """Returns what a step adds to the state at each moment that may be its peak; arguments as for `parts`.

    These are the loss, which holds all activations, the logits and their gradient; the backward pass of the last
    block, when the logits are gone; and that of the first block, when nearly all gradients are there and nearly all
    activations are gone. A scan holds the activations and the gradients of all its blocks from its start to its end.
    `gradients` are bytes of all of them on one device, `scores` those of a block that its backward pass computes
    again.
    """
    logits = 0
    others = 0
    vocabularies = _vocabularies(model)
    for shape, dtype in saved:
        size = array_bytes(model, shape, dtype, examples)
        is_weight = shape in model.weight_shapes
        if examples in shape and not is_weight and shape[-1] in vocabularies:
            logits += size
        else:
            others += size
    loss, block = _temporaries(model, saved, examples, compute_width)
    block += scores
    first_gradients = 0
    last_activations = others // _block_count(model)
    if _stacked(model) > 1:
        first_gradients = gradients
        last_activations = others
    return [
        _moment(0, others + logits, loss),
        _moment(first_gradients, others, block),
        _moment(gradients, last_activations, block),
    ]


def _moment(gradients: int, activations: int, temporaries: int) -> tuple[MemoryPart, ...]:
    return (
        MemoryPart(GRADIENTS, gradients, "estimated"),
        MemoryPart(ACTIVATIONS, activations, "estimated"),
        MemoryPart(TEMPORARIES, temporaries, "estimated"),
    )


def _vocabularies(model: PlacedModel) -> set[int]:
    """Returns the sizes of the vocabularies: of tables and heads the larger dim."""
    return {max(model.placements[path].shape) for path in model.of_vocabulary}


def _stacked(model: PlacedModel) -> int:
    """Returns the layers of the largest stack, which a scan computes; 1 if none is stacked."""
    return max(depths(model).values(), default=1)


def _block_count(model: PlacedModel) -> int:
    """Returns the number of equal blocks, in a stack or one after the other; 1 if no two are equal."""
    counts: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for variables in blocks(model).values():
        counts[tuple(placement.shape for placement in variables)] += 1
    return max(_stacked(model), *counts.values(), 1)


def array_bytes(model: PlacedModel, shape: tuple[int, ...], dtype: str, examples: int) -> int:
    """Returns one device's bytes of an activation, whose sharding XLA chooses.

    Assumed is that a dim of the examples is sharded as the batch, one of the tokens as the tokens, and one of a
    layer's units, such as hidden units, as its kernel is where layers use it.
    """
    shards = model.weight_shapes.get(shape)
    if shards is None:
        shards = model.shards(_activation_axes(model, shape, examples))
    return math.prod(shape) * width_of(dtype) // shards


def _activation_axes(model: PlacedModel, shape: tuple[int, ...], examples: int) -> set[str | None]:
    """Returns the mesh axes that shard an activation, each by one of its dims."""
    dims = tuple(size for size in shape if size > 1)
    axes, free = _token_axes(model, dims, len(shape), examples)
    for units in model.activation_units:
        positions = units.place(dims, free)
        if positions is not None and axes.isdisjoint(filter(None, units.axes)):
            free = sorted(set(free).difference(positions))
            axes.update(units.axes)
    return axes


def _token_axes(
    model: PlacedModel, dims: tuple[int, ...], rank: int, examples: int
) -> tuple[set[str | None], list[int]]:
    """Returns the axes that shard an activation's examples and tokens, and the positions of its other dims."""
    all_tokens = None
    if model.row_tokens is not None:
        all_tokens = examples * model.row_tokens
    free = list(range(len(dims)))
    # A scan's results begin with the number of its steps, each of a layer or of a few.
    begins_with_steps = model.depth is not None and dims and model.depth % dims[0] == 0
    if begins_with_steps and (dims[0] not in (examples, all_tokens) or dims[0] in dims[1:]):
        free.remove(0)
    has_both = examples in dims and model.row_tokens in dims
    position = _position(dims, free, all_tokens)
    if position is not None and not has_both:
        # All tokens are one dim.
        free.remove(position)
        return {model.batch_axis, model.token_axis}, free
    numbers = math.prod(dims)
    if examples not in dims and numbers % examples == 0 and rank > 2:
        if model.row_tokens is not None and numbers % (examples * model.row_tokens) == 0:
            # A loss in chunks. Its dims count chunks, parts of the mesh and tokens, and at last features or logits.
            return {model.batch_axis, model.token_axis}, free[-1:]
        return {model.batch_axis}, free
    axes: set[str | None] = set()
    for size, axis in ((examples, model.batch_axis), (model.row_tokens, model.token_axis)):
        position = _position(dims, free, size)
        if position is not None:
            free.remove(position)
            axes.add(axis)
    last = len(dims) - 1
    ends_with_tokens = dims[-2:] == (model.row_tokens, model.row_tokens)
    if ends_with_tokens and last in free and len(free) > 1:
        # Scores have heads, and a dim of queries and one of keys.
        free.remove(last)
    return axes, free


def _position(dims: tuple[int, ...], free: Iterable[int], size: int | None) -> int | None:
    """Returns the first free position of a dim of this size; None if there is none, or no size."""
    for position in free:
        if dims[position] == size:
            return position
    return None


def blocks(model: PlacedModel) -> dict[str, list[Placement]]:
    """Returns the variables of each block: of layers whose outermost name is the same."""
    by_block: dict[str, list[Placement]] = defaultdict(list)
    for path, placement in model.placements.items():
        by_block[path.partition("/")[0]].append(placement)
    return dict(by_block)


def depths(model: PlacedModel) -> dict[str, int]:
    """Returns the layers in each block's stack, the first dim of all its variables; 1 if it is not stacked."""
    stacked = model.structure.stacked
    counts = {}
    for name, variables in blocks(model).items():
        counts[name] = 1
        if all(placement.path in stacked for placement in variables):
            counts[name] = variables[0].shape[0]
    return counts


def _temporaries(model: PlacedModel, saved: Saved, examples: int, compute_width: int) -> tuple[int, int]:
    """Returns the bytes in the loss, and in the backward pass of the largest block.

    The loss has the gradient of the largest array of the examples, such as logits, which is as large as the array. A
    block has its gathered weights, values and gradients.
    """
    counts = depths(model)
    positions = _positions_per_device(model)
    block = 0
    for name, variables in blocks(model).items():
        count = counts[name]
        gathered = 0
        for placement in variables:
            gathered += math.prod(model.used_shape(placement)) * compute_width // count
        # Logits are computed in chunks, or are among the kept arrays.
        values = _block_values(model, variables, count, positions, model.of_vocabulary) * compute_width
        block = max(block, _GATHERED_BLOCKS * gathered + _VALUES_AND_GRADIENTS * values)
    loss = 0
    for shape, dtype in saved:
        if shape[:1] == (examples,):
            loss = max(loss, array_bytes(model, shape, dtype, examples))
    return loss, block


def _repeated_scores(
    model: PlacedModel, saved: Saved, scores: Sequence[Saved], examples: int, compute_width: int
) -> int:
    """Returns one device's bytes of the scores of the largest block that activation checkpointing computes again.

    They are the gradients of the scores, in the dtype of the scores, and the weights of the values, which layers
    compute with. What the forward pass keeps is among the activations.
    """
    # By their numbers: what is kept may be transposed, or stacked by a scan.
    kept = set[int]()
    for shape, _ in saved:
        kept.update((math.prod(shape), math.prod(shape[1:])))
    vocabularies = _vocabularies(model)
    largest = 0
    for block in scores:
        total = 0
        for shape, dtype in block:
            # The logits of a loss in chunks are products of two activations too.
            if math.prod(shape) not in kept and shape[-1] not in vocabularies:
                size = array_bytes(model, shape, dtype, examples)
                total += size + size * compute_width // width_of(dtype)
        largest = max(largest, total)
    return largest


def product_bytes(model: PlacedModel, compute_width: int, *, with_head: bool = True) -> int:
    """Returns one device's bytes of the results of all products with kernels, for one forward pass."""
    counts = depths(model)
    positions = _positions_per_device(model)
    left_out: Collection[str] = ()
    if not with_head:
        left_out = model.of_vocabulary
    numbers = 0
    for name, variables in blocks(model).items():
        numbers += counts[name] * _block_values(model, variables, counts[name], positions, left_out)
    return numbers * compute_width


def _block_values(
    model: PlacedModel,
    variables: Iterable[Placement],
    count: int,
    positions: int,
    left_out: Collection[str] = (),
) -> int:
    """Returns how many numbers the products of one block have on one device, without those of some paths."""
    numbers = 0
    for placement in variables:
        name = placement.path.rpartition("/")[2]
        if placement.path in left_out or "kernel" not in name or len(placement.shape) < 2:
            continue
        shape = model.used_shape(placement)
        if count > 1:
            shape = shape[1:]
        # The output of (D, F) has F numbers, of (D, H, K) H * K, and of (H, K, D) D.
        width = shape[-1]
        makes_heads = len(shape) == 3 and shape[0] >= shape[-1]
        if makes_heads:
            width = math.prod(shape[1:])
        role = model.structure.roles.get(placement.path)
        if role is not None and role.experts is not None and role.width != len(placement.shape) - 1:
            # (experts, in, hidden units), while (experts, hidden units, out) has a sum over the experts.
            width = shape[0] * shape[-1]
        numbers += positions * width
    return numbers


def _positions_per_device(model: PlacedModel) -> int:
    """Returns the vectors of the longest sequence of outputs on one device.

    Images count by their convolutions. Other outputs of more than three dims are heads, or scores between tokens. A
    table that tied embeddings pass on has a row per token of the vocabulary, and no positions.
    """
    most = 0
    for output in model.outputs:
        if not output.has_examples:
            continue
        if len(output.shape) in (2, 3) or "Conv" in output.kind:
            most = max(most, model.positions(output))
    return most


def width_of(dtype: str) -> int:
    """Returns the bytes of a number; NumPy has no bfloat16 unless JAX is loaded."""
    if dtype == "bfloat16":
        return 2
    return np.dtype(dtype).itemsize
