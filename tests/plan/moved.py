"""What a step communicates on DTensor, reckoned from shapes alone: what the count in its program is held against.

The rules: a data axis splits the batch (or an image's height or width), so that gradients are summed over it; a
kernel's rows split over another axis leave partial sums of the outputs, its columns partial sums of the inputs'
gradients; a variable stored in parts over a data axis, or that an operation needs whole, is put together for use, and
so are images split in space for a convolution or a window, whose output is split again. What DTensor moves besides, as
between layers whose splits do not fit each other, is only in its program.
"""

from __future__ import annotations

import collections as containers
import itertools
import math
from collections.abc import Iterator

import numpy as np

from runner.engine.base import Collective, LayerInput, LayerOutput
from runner.layout import Placement
from runner.plan.estimate import Step, features, input_spec, makes_images, output_bytes, output_spec

_MOMENTS = 2  # of a batch: mean and variance; backward as many sums, one for each


def collectives(step: Step) -> list[Collective]:
    """Returns what one training step communicates, each tensor by itself (a framework may merge some)."""
    found: list[Collective] = []
    twins = _twins(step)
    for path, held in step.placements.items():
        found += _of_variable(step, held, step.by_layer.get(path.rpartition("/")[0]), is_twin=path in twins)
    summed, gathered = set[tuple[LayerInput, ...]](), set[tuple[LayerInput, ...]]()
    before: tuple[int, ...] = ()
    for output in step.outputs:
        for kernel in step.kernels(output.layer):
            if kernel.path in step.whole:
                continue
            found += _of_rows(step, kernel, output)
            # Layers that take one input, as query, key and value do, add its gradients before they are summed.
            known = bool(output.inputs) and all(taken.layer for taken in output.inputs)
            alike = output.inputs in summed if known else len(before) == 3 and kernel.shape == before
            summed.add(output.inputs)
            before = kernel.shape
            found += [] if alike else _of_columns(step, kernel, output)
        found += _of_whole_images(step, output, gathered)
        found += _of_statistics(step, output)
        found += _of_means(step, output)
        found += _of_tokens(step, output)
    return found


def _each(kind: str, axis: str, phase: str, origin: str, size: int) -> Iterator[Collective]:
    """Yields a collective, unless no device has a partner."""
    if axis:
        yield Collective(kind, axis, phase, origin, 1, size, counted=False)


def _of_variable(step: Step, held: Placement, output: LayerOutput | None, *, is_twin: bool) -> Iterator[Collective]:
    """The gathering of a variable stored in parts, and the sum of its gradient."""
    size = math.prod(step.used_shape(held)) * step.width[held.path]
    used = step.used_spec(held)
    stored = step.joined(a for a, b in zip(held.spec, used, strict=True) if a != b)
    yield from _each("all_gather", stored, "forward", held.path, size)
    spec = output_spec(step, output) if output is not None else step.image[:1]
    if output is not None and held in step.kernels(output.layer) and held.path in step.whole:
        spec = spec[:1]  # of whole images, so that devices that differ in space alone find the same
    if held.path in step.trained and not is_twin:
        summed = step.joined(axis for axis in spec if axis in step.data_axes)
        yield from _each("all_reduce", summed, "backward", held.path, size)


def _twins(step: Step) -> set[str]:
    """Returns shifts whose gradient is that of a later one: what one addition takes has one gradient."""
    taken = containers.Counter(each.layer for output in step.outputs for each in output.inputs)
    order = {output.layer: index for index, output in enumerate(step.outputs)}
    found = set[str]()
    for addition in (output for output in step.outputs if output.kind == "Add"):
        alone = [each.layer for each in addition.inputs if taken[each.layer] == 1 and each.layer in order]
        variables = [held for layer in sorted(alone, key=order.__getitem__) for held in step.variables(layer)]
        shifts = [held for held in variables if held.path.endswith(("/bias", "/beta")) and held.path in step.trained]
        found |= {a.path for a, b in itertools.pairwise(shifts) if a.shape == b.shape}
    return found


def _of_rows(step: Step, kernel: Placement, output: LayerOutput) -> Iterator[Collective]:
    """The sum of partial outputs that split rows leave."""
    rows = step.joined(step.used_spec(kernel)[: -features(output, kernel)])
    yield from _each("all_reduce", rows, "forward", output.layer, output_bytes(step, output, step.width[kernel.path]))


def _of_columns(step: Step, kernel: Placement, output: LayerOutput) -> Iterator[Collective]:
    """The sum of partial input gradients that split columns leave."""
    count = features(output, kernel)
    columns = step.joined(step.used_spec(kernel)[-count:])
    if not columns or not step.is_trained_before(output):
        return
    positions = math.prod(output.shape[:-count]) // step.shards(output_spec(step, output)[:-count])
    # A window's rows and columns are no dims of a convolution's input.
    inputs = step.used_shape(kernel)[-2] if "Conv" in output.kind else math.prod(step.used_shape(kernel)[:-count])
    yield from _each("all_reduce", columns, "backward", output.layer, positions * inputs * step.width[kernel.path])


def _of_whole_images(step: Step, output: LayerOutput, gathered: set[tuple[LayerInput, ...]]) -> Iterator[Collective]:
    """The images that a convolution or a window puts together, once each, and the gradients of what it splits."""
    window = "Pooling2D" in output.kind and "Global" not in output.kind
    convolution = any(kernel.path in step.whole for kernel in step.kernels(output.layer))
    if not output.inputs or not (window or convolution):
        return
    width = np.dtype(output.dtype).itemsize
    spec, taken = input_spec(step, output.inputs[0]), output.inputs[0]
    if output.inputs not in gathered:
        gathered.add(output.inputs)
        size = math.prod(taken.shape) // step.shards(spec[:1]) * width
        yield from _each("all_gather", step.joined(spec[1:3]), "forward", output.layer, size)
    if convolution or step.is_trained_before(output):
        spec = output_spec(step, output)
        size = math.prod(output.shape) // step.shards(spec[:1]) * width
        yield from _each("all_gather", step.joined(spec[1:3]), "backward", output.layer, size)


def _of_statistics(step: Step, output: LayerOutput) -> Iterator[Collective]:
    """The mean and variance of a batch, and the two sums that their gradients need; scale and shift may be these."""
    if output.kind != "BatchNormalization":
        return
    axes, size = step.joined(output_spec(step, output)[:-1]), output.shape[-1] * np.dtype(output.dtype).itemsize
    for _ in range(_MOMENTS):
        yield from _each("all_reduce", axes, "forward", output.layer, size)
    trained = sum(held.path in step.trained for held in step.variables(output.layer))
    for _ in range(_MOMENTS - trained):
        yield from _each("all_reduce", axes, "backward", output.layer, size)


def _of_means(step: Step, output: LayerOutput) -> Iterator[Collective]:
    """The sum over devices that a mean over split height and width is."""
    if output.kind == "GlobalAveragePooling2D" and output.inputs:
        space = step.joined(input_spec(step, output.inputs[0])[1:3])
        size = output_bytes(step, output, np.dtype(output.dtype).itemsize)
        yield from _each("all_reduce", space, "forward", output.layer, size)


def _of_tokens(step: Step, output: LayerOutput) -> Iterator[Collective]:
    """The images that are put together where tokens are made of them: along their width, then along their height."""
    taken = output.inputs[0] if output.inputs else LayerInput("", ())
    from_images = len(taken.shape) == 4 and (
        taken.layer not in step.by_layer or makes_images(step, step.by_layer[taken.layer])
    )
    if len(output.shape) != 3 or not from_images or step.variables(output.layer):
        return
    spec = list(input_spec(step, taken))
    for dim in (2, 1):
        axis, spec[dim] = spec[dim], None
        size = math.prod(taken.shape) // step.shards(spec) * np.dtype(output.dtype).itemsize
        yield from _each("all_gather", step.joined([axis]), "forward", output.layer, size)
