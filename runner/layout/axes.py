"""Which mesh axes split a batch. Imports no NumPy, which a refusal would wait for."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.schema import LayoutConfig

BATCH = "batch"
SEQUENCE = "sequence"  # the name of the dim that counts tokens


def batch_axis(config: LayoutConfig, axes: Mapping[str, int]) -> str | None:
    """Returns the axis that splits examples: the first entry of `layout.inputs`, else the mesh's axis `batch`.

    Args:
      config: checked, so that its inputs agree.
      axes: mesh axis to size.
    """
    for spec in config.inputs.values():
        if spec:
            return spec[0]
    return BATCH if BATCH in axes else None


def data_axes(config: LayoutConfig, axes: Mapping[str, int]) -> set[str]:
    """Returns the axes that split some dim of a batch's arrays; gradients are summed over these."""
    named = {axis for spec in config.inputs.values() for axis in spec}
    return {axis for axis in (*named, batch_axis(config, axes), config.sequence) if axis is not None}
