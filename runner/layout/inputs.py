"""How a batch's arrays lie on the mesh."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import LayoutConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.layout.axes import SEQUENCE, batch_axis
from runner.layout.specs import Spec


def input_specs(config: LayoutConfig, arrays: Mapping[str, ArraySpec], axes: Mapping[str, int]) -> dict[str, Spec]:
    """Returns one entry a dim, the examples' first, of every array of a batch and of `weight`.

    An array that `layout.inputs` does not name is split over its first dim, and its sequence by `layout.sequence`.

    Args:
      config: checked.
      arrays: specs by name.
      axes: mesh axis to size.
    """
    first = batch_axis(config, axes)
    found: dict[str, Spec] = {}
    for name, spec in arrays.items():
        named = config.inputs.get(name)
        dims = spec.dims or [""] * len(spec.shape)
        lies: list[str | None] = [first, *[None] * len(dims)]
        if SEQUENCE in dims:
            lies[1 + dims.index(SEQUENCE)] = config.sequence
        found[name] = tuple(named) if named else tuple(lies)
    return found | {WEIGHT: (first,)}
