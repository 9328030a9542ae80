"""Mesh axes that shard a batch. Imports no NumPy, which would delay an error message."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from runner.config.schema import LayoutConfig

BATCH = "batch"
# Name of the dim of tokens.
SEQUENCE = "sequence"


def batch_axis(config: LayoutConfig, axes: Mapping[str, int]) -> str | None:
    """Returns the axis that shards the examples.

    It is the first entry of `layout.inputs`, else the axis `batch`.

    Args:
      config: checked, so that all its inputs have the same first entry.
      axes: mesh axis to size.
    """
    for spec in config.inputs.values():
        if spec:
            return spec[0]
    return BATCH if BATCH in axes else None


def data_axes(config: LayoutConfig, axes: Mapping[str, int]) -> set[str]:
    """Returns the axes that shard any dim of a batch's arrays.

    Gradients are summed over these.
    """
    others = (batch_axis(config, axes), config.sequence)
    candidates = itertools.chain(others, *config.inputs.values())
    return {axis for axis in candidates if axis is not None}
