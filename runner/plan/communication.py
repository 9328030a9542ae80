"""Communication of a training step from the layout alone, for plans that compile nothing.

Data parallelism: the gradient of a variable is summed over the axes that shard the batch. One that is stored sharded
over such an axis (FSDP) is gathered before each use, frozen or not, and its gradient is reduced and scattered
(Rajbhandari et al., ZeRO, arXiv:1910.02054). Tensor parallelism: the product with a kernel that is sharded along the
summed dim is summed over that axis, and so is the gradient of the input of the kernel that made the sharded values
(Shoeybi et al., Megatron-LM, arXiv:1909.08053). Between two kernels that are both sharded along their columns, the
activation is gathered and its gradient is summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from runner.engine.base import Collective, LayerOutput
from runner.layout import Placement
from runner.plan import memory
from runner.plan.placed_model import PlacedModel

FORWARD = "forward"
BACKWARD = "backward"


def collectives(model: PlacedModel, *, compute_width: int, recomputes: bool) -> list[Collective]:
    """Returns the collectives of one microbatch.

    `compute_width` is the bytes per number that layers compute in; with `recomputes`, activation checkpointing
    computes the forward pass of each block a second time.
    """
    return [*_of_variables(model, compute_width), *_of_activations(model, compute_width, recomputes=recomputes)]


def _of_variables(model: PlacedModel, compute_width: int) -> Iterator[Collective]:
    """Yields the gathers of weights and the sums of gradients."""
    depths = memory.depths(model)
    for path, placement in model.placements.items():
        # A scanned stack gathers the weights of one block at a time.
        count = depths[path.partition("/")[0]]
        stored_over = model.joined(model.data_axes.intersection(placement.spec))
        others = model.joined(model.data_axes.difference(placement.spec))
        used = math.prod(model.used_shape(placement))
        if stored_over:
            for phase in (FORWARD, BACKWARD):
                # The backward pass reads a frozen kernel too, for the gradient of its input.
                yield Collective("all_gather", stored_over, phase, path, count, used * compute_width)
        if path not in model.trained:
            continue
        if stored_over:
            yield Collective("reduce_scatter", stored_over, BACKWARD, path, count, used * model.width[path])
        if others:
            own = used // model.shards([stored_over])
            yield Collective("all_reduce", others, BACKWARD, path, count, own * model.width[path])


def _of_activations(model: PlacedModel, compute_width: int, *, recomputes: bool) -> Iterator[Collective]:
    """Yields the sums of activations and of their gradients over the axes that shard kernels."""
    depths = memory.depths(model)
    for output in model.calls:
        for kernel in model.kernels(output.layer):
            gathered = gathered_input(model, output, kernel)
            if gathered is not None:
                columns, numbers = gathered
                yield Collective("all_gather", columns, FORWARD, output.layer, 1, numbers * compute_width)
                yield Collective("all_reduce", columns, BACKWARD, output.layer, 1, numbers * compute_width)
        for kernel in [*model.kernels(output.layer), *model.inner_kernels(output.layer)]:
            axis = _summed_axis(model, output, kernel)
            if axis is None:
                continue
            count = depths[kernel.path.partition("/")[0]]
            size = count * model.positions(output) * kernel.shape[-1] * compute_width
            yield Collective("all_reduce", axis, FORWARD, output.layer, count, size)
            # The input of the region, which is as wide, and once more the output if it is computed again.
            times = 1
            if recomputes:
                times = 2
            yield Collective("all_reduce", axis, BACKWARD, output.layer, times * count, times * size)


def gathered_input(model: PlacedModel, output: LayerOutput, kernel: Placement) -> tuple[str, int] | None:
    """Returns the axis over which a dense layer's input is gathered, and the numbers that a device gets; or None.

    The axis shards the columns of the layer's kernel, and those of the layer before it: the product needs whole rows.
    """
    provider = model.provider(output)
    if len(kernel.shape) != 2 or provider is None:
        return None
    shape = output.inputs[0].shape
    if provider.shape != shape or shape[-1:] != kernel.shape[:1]:
        return None
    *others, axis = model.output_spec(provider)
    if axis is None or axis != model.used_spec(kernel)[1] or model.axes[axis] == 1:
        return None
    return axis, math.prod(shape) // model.shards(others)


def _summed_axis(model: PlacedModel, output: LayerOutput, kernel: Placement) -> str | None:
    """Returns the axes, joined by `+`, over which products with a kernel are summed: those of no dim of the output."""
    if kernel.shape[-1:] != output.shape[-1:]:
        return None
    own_dims = model.output_dims(output, kernel)
    axes = []
    for dim, axis in enumerate(model.used_spec(kernel)):
        if dim not in own_dims and axis is not None and model.axes[axis] > 1:
            axes.append(axis)
    return "+".join(axes) or None
