"""What a layout costs, reckoned from shapes alone: activations, operations and collectives. Imports no TensorFlow.

The rules of a training step on a mesh: a data axis splits the batch (or an image's height or width), so that gradients
are summed over it; a kernel's rows split over another axis leave partial sums of the outputs, its columns partial sums
of the inputs' gradients; a variable stored in parts over a data axis is put together for use. What a framework moves
beyond that, as between layers whose splits do not fit each other, is only in its program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.engine.base import Collective, LayerOutput
from runner.layout import Placement, Spec

_TRAINING = 3  # a backward pass costs twice the forward pass: gradients of inputs and of weights


@dataclass(frozen=True)
class Step:
    """What the estimates are made of.

    Attributes:
      placements: canonical path to placement.
      trained: paths of trained variables.
      outputs: of the layers, in the model's order.
      axes: mesh axis to size.
      image: the spec of the images: batch, height, width, channel.
      width: bytes of one number of a variable, by path.
    """

    placements: Mapping[str, Placement]
    trained: Collection[str]
    outputs: Sequence[LayerOutput]
    axes: Mapping[str, int]
    image: Spec
    width: Mapping[str, int]

    @property
    def data_axes(self) -> set[str]:
        """Axes that split the inputs."""
        return {axis for axis in self.image if axis}

    def variables(self, layer: str) -> list[Placement]:
        """Returns the placements of a layer's own variables."""
        return [held for path, held in self.placements.items() if path.rpartition("/")[0] == layer]

    def kernels(self, layer: str) -> list[Placement]:
        """Returns those that multiply the layer's inputs."""
        named = [held for held in self.variables(layer) if "kernel" in held.path.rpartition("/")[2]]
        return [held for held in named if len(held.shape) >= 2]

    def used_shape(self, held: Placement) -> tuple[int, ...]:
        """Returns a device's shape of a variable as layers use it: whole over data axes, in parts over others."""
        spec = tuple(None if axis in self.data_axes else axis for axis in held.spec)
        return Placement(held.path, held.shape, spec, None).shard_shape(self.axes)

    def shards(self, axes: Iterable[str | None]) -> int:
        """Returns into how many parts these axes cut."""
        return math.prod(self.axes[axis] for axis in axes if axis)

    def joined(self, axes: Iterable[str | None]) -> str:
        """Names axes in the mesh's order, those of one device left out, joined by `+`."""
        chosen = set(axes)
        return "+".join(axis for axis, size in self.axes.items() if axis in chosen and size > 1)


def features(output: LayerOutput, kernel: Placement) -> int:
    """Returns how many of a kernel's last dims are dims of the output: two for (dim, heads, head dim), else one."""
    return 2 if len(kernel.shape) == 3 and len(output.shape) == 4 and not _spatial(output) else 1


def _spatial(output: LayerOutput) -> bool:
    return len(output.shape) == 4 and "Dense" not in output.kind and "Attention" not in output.kind


def output_spec(step: Step, output: LayerOutput) -> Spec:
    """Returns how a layer's output is split: the batch and an image's height and width as the inputs', columns as the
    kernel's.
    """
    spec: list[str | None] = [step.image[0] if step.image else None, *[None] * (len(output.shape) - 1)]
    if _spatial(output):
        spec[1:3] = step.image[1:3]
    for kernel in step.kernels(output.layer):
        count = features(output, kernel)
        columns = [axis if axis not in step.data_axes else None for axis in kernel.spec[-count:]]
        spec[-count:] = columns
    fits = [
        axis if axis and dim % step.axes[axis] == 0 else None for dim, axis in zip(output.shape, spec, strict=True)
    ]
    return tuple(fits)


def output_bytes(step: Step, output: LayerOutput, width: int) -> int:
    """Returns what one device holds of a layer's output, at `width` bytes a number."""
    return math.prod(output.shape) * width // step.shards(output_spec(step, output))


def flops(step: Step, output: LayerOutput) -> int:
    """Returns a device's operations in a layer for one training step.

    Two an entry of the kernel and a position of the output (a multiplication and an addition) forward, three times
    that with the backward pass; activations, normalisation and attention's scores are left out.
    """
    total = 0
    for kernel in step.kernels(output.layer):
        count = features(output, kernel)
        positions = math.prod(output.shape[:-count])
        data = step.shards(axis for axis in output_spec(step, output)[:-count] if axis in step.data_axes)
        total += _TRAINING * 2 * math.prod(step.used_shape(kernel)) * positions // data
    return total


def collectives(step: Step) -> list[Collective]:
    """Returns what one training step communicates, each tensor by itself (a framework may merge some)."""
    found: list[Collective] = []
    outputs = {output.layer: output for output in step.outputs}
    for path, held in step.placements.items():
        output = outputs.get(path.rpartition("/")[0])
        found += _of_variable(step, held, output)
    first = next((output.layer for output in step.outputs if step.kernels(output.layer)), None)
    before: tuple[int, ...] = ()
    for output in step.outputs:
        for kernel in step.kernels(output.layer):
            # Query, key and value use one input, whose gradients are added before they are summed over devices.
            shared = len(kernel.shape) == 3 and features(output, kernel) == 2 and kernel.shape == before
            found += _of_kernel(step, kernel, output, needs_input=output.layer != first and not shared)
            before = kernel.shape
    return found


def _of_variable(step: Step, held: Placement, output: LayerOutput | None) -> list[Collective]:
    """The gathering of a variable stored in parts, and the sum of its gradient."""
    size = math.prod(step.used_shape(held)) * step.width[held.path]
    stored = step.joined(axis for axis in held.spec if axis in step.data_axes)
    found = [Collective("all_gather", stored, "forward", held.path, 1, size, counted=False)] if stored else []
    spec = output_spec(step, output) if output is not None else step.image[:1]
    summed = step.joined(axis for axis in spec if axis in step.data_axes)
    if summed and held.path in step.trained:
        found.append(Collective("all_reduce", summed, "backward", held.path, 1, size, counted=False))
    return found


def _of_kernel(step: Step, kernel: Placement, output: LayerOutput, *, needs_input: bool) -> list[Collective]:
    """The sum of partial outputs that split rows leave, and of partial input gradients that split columns leave."""
    count = features(output, kernel)
    rows = step.joined(axis for axis in kernel.spec[:-count] if axis not in step.data_axes)
    columns = step.joined(axis for axis in kernel.spec[-count:] if axis not in step.data_axes)
    width, found = step.width[kernel.path], []
    if rows:
        size = output_bytes(step, output, width)
        found.append(Collective("all_reduce", rows, "forward", output.layer, 1, size, counted=False))
    if columns and needs_input:
        spec = output_spec(step, output)[:-count]
        positions = math.prod(output.shape[:-count]) // step.shards(spec)
        inputs = math.prod(step.used_shape(kernel)[:-count])
        if "Conv" in output.kind:  # a window's rows and columns are no dims of the input
            inputs = step.used_shape(kernel)[-2]
        size = positions * inputs * width
        found.append(Collective("all_reduce", columns, "backward", output.layer, 1, size, counted=False))
    return found
