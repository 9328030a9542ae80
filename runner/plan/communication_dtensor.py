"""Communication of a training step on DTensor, from shapes alone.

A data axis splits the batch, so that gradients are summed over it. A kernel's rows that are split over another axis
leave partial sums of the outputs, its columns partial sums of the inputs' gradients. A variable that is stored in
parts over a data axis, or that an operation needs whole, is gathered for use. Between two kernels whose columns are
split, the activation is gathered. What DTensor moves between other layers whose shardings do not fit each other is
left out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from runner.engine.base import Collective, LayerInput, LayerOutput
from runner.layout import Placement, Spec
from runner.plan.communication import gathered_input
from runner.plan.placed_model import PlacedModel

_MOMENTS = 2  # of a batch: mean and variance; backward as many sums, one for each


def collectives(model: PlacedModel) -> list[Collective]:
    """Returns what one microbatch communicates, each tensor by itself; DTensor merges some of them."""
    found: list[Collective] = []
    twins = _twins(model)
    for path, held in model.placements.items():
        found += _of_variable(model, held, model.by_layer.get(path.rpartition("/")[0]), is_twin=path in twins)
    summed = set[tuple[LayerInput, ...]]()
    before: tuple[int, ...] = ()
    for output in model.calls:
        for kernel in model.kernels(output.layer):
            if kernel.path in model.whole:
                continue
            # The sum of partial outputs that split rows leave.
            rows = model.joined(model.used_spec(kernel)[: -len(model.output_dims(output, kernel))])
            size = model.output_bytes(output, model.width[kernel.path])
            found += _each("all_reduce", rows, "forward", output.layer, size)
            gathered = gathered_input(model, output, kernel)
            if gathered is not None:
                axis, numbers = gathered
                found += _each("all_gather", axis, "forward", output.layer, numbers * model.width[kernel.path])
            # Layers that take one input, as query, key and value do, add its gradients before they are summed.
            if output.inputs and all(taken.layer for taken in output.inputs):
                alike = output.inputs in summed
            else:
                alike = len(before) == 3 and kernel.shape == before
            summed.add(output.inputs)
            before = kernel.shape
            if not alike:
                found += _of_columns(model, kernel, output)
        found += _of_statistics(model, output)
    return found


def _each(kind: str, axis: str, phase: str, origin: str, size: int) -> Iterator[Collective]:
    """Yields a collective, unless no device has a partner."""
    if axis:
        yield Collective(kind, axis, phase, origin, 1, size)


def _of_variable(
    model: PlacedModel, held: Placement, output: LayerOutput | None, *, is_twin: bool
) -> Iterator[Collective]:
    """Yields the gather of a variable that is stored in parts, and the sum of its gradient."""
    size = math.prod(model.used_shape(held)) * model.width[held.path]
    stored = model.joined(set(held.spec).difference(model.used_spec(held)))
    yield from _each("all_gather", stored, "forward", held.path, size)
    spec: Spec = (model.batch_axis,)
    if output is not None:
        spec = model.output_spec(output)
    if held.path in model.trained and not is_twin:
        summed = model.joined(model.data_axes.intersection(spec))
        yield from _each("all_reduce", summed, "backward", held.path, size)


def _twins(model: PlacedModel) -> set[str]:
    """Returns shifts whose gradient is that of a later one: the terms of an addition have one gradient."""
    taken: Counter[str] = Counter()
    order = {}
    for index, output in enumerate(model.outputs):
        order[output.layer] = index
        taken.update(each.layer for each in output.inputs)
    found = set[str]()
    for addition in model.outputs:
        if addition.kind != "Add":
            continue
        alone = [each.layer for each in addition.inputs if taken[each.layer] == 1 and each.layer in order]
        shifts = []
        for layer in sorted(alone, key=order.__getitem__):
            for held in model.variables(layer):
                if held.path.endswith(("/bias", "/beta")) and held.path in model.trained:
                    shifts.append(held)
        for shift, later in itertools.pairwise(shifts):
            if shift.shape == later.shape:
                found.add(shift.path)
    return found


def _of_columns(model: PlacedModel, kernel: Placement, output: LayerOutput) -> Iterator[Collective]:
    """Yields the sum of partial input gradients that split columns leave."""
    count = len(model.output_dims(output, kernel))
    columns = model.joined(model.used_spec(kernel)[-count:])
    if not columns or not model.has_trained_inputs(output):
        return
    positions = math.prod(output.shape[:-count]) // model.shards(model.output_spec(output)[:-count])
    inputs = math.prod(model.used_shape(kernel)[:-count])
    if "Conv" in output.kind:
        # A window's rows and columns are no dims of a convolution's input.
        inputs = model.used_shape(kernel)[-2]
    yield from _each("all_reduce", columns, "backward", output.layer, positions * inputs * model.width[kernel.path])


def _of_statistics(model: PlacedModel, output: LayerOutput) -> Iterator[Collective]:
    """Yields the mean and variance of a batch, and the two sums of their gradients, which scale and shift may be."""
    if output.kind != "BatchNormalization":
        return
    axes = model.joined(model.output_spec(output)[:-1])
    size = output.shape[-1] * np.dtype(output.dtype).itemsize
    for _ in range(_MOMENTS):
        yield from _each("all_reduce", axes, "forward", output.layer, size)
    trained = sum(held.path in model.trained for held in model.variables(output.layer))
    for _ in range(_MOMENTS - trained):
        yield from _each("all_reduce", axes, "backward", output.layer, size)
