"""Specs of a batch's arrays."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import LayoutConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.layout.axes import SEQUENCE, Spec, batch_axis


def input_specs(config: LayoutConfig, arrays: Mapping[str, ArraySpec], axes: Mapping[str, int]) -> dict[str, Spec]:
    """Returns the spec of every array of a batch and of `weight`; the first entry is that of the examples.

    An array that `layout.inputs` does not name is sharded over its first dim, and its sequence by `layout.sequence`.
    """
    examples_axis = batch_axis(config, axes)
    by_name: dict[str, Spec] = {}
    for name, array in arrays.items():
        configured = config.inputs.get(name)
        if configured:
            by_name[name] = tuple(configured)
            continue
        spec: list[str | None] = [examples_axis, *[None] * len(array.shape)]
        if SEQUENCE in array.dims:
            spec[1 + array.dims.index(SEQUENCE)] = config.sequence
        by_name[name] = tuple(spec)
    # Every batch has one weight per example.
    by_name[WEIGHT] = (examples_axis,)
    return by_name
